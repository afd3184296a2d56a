from __future__ import annotations

import numpy as np

from crossbow.kernels.reference import Reference
from crossbow.ops import GradientDescentOptimiser, Site
from crossbow.types import Phase, Tensor


def test_it_ends_a_dataflow_and_prepares_nothing() -> None:
    optimiser = GradientDescentOptimiser()
    assert optimiser.number_of_inputs is None
    assert optimiser.output_shape((2, 3), (4, 5, 6, 7)) == (1,)
    assert optimiser.gradient() is None
    tensor = Tensor((1,), np.dtype(np.float32))
    site = Site(Reference(), Phase.TRAIN, (tensor,), tensor, None, {}, seed=0, key=0)
    assert optimiser.prepare(site) == ()
