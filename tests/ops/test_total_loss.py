from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import ConfigurationError
from crossbow.kernels.reference import Reference
from crossbow.ops import Site, TotalLoss
from crossbow.testing import run_operator
from crossbow.types import Phase, Tensor


def test_it_is_a_weighted_sum() -> None:
    losses = [np.array([2.0], np.float32), np.array([5.0], np.float32)]
    (total,) = run_operator(TotalLoss(weights=(1.0, 0.3)), losses).outputs
    np.testing.assert_allclose(total, [3.5])
    tensor = Tensor((1,), np.dtype(np.float32))
    site = Site(Reference(), Phase.TRAIN, (tensor, tensor), tensor, None, {}, seed=0, key=0)
    assert len(TotalLoss(weights=(1.0, 0.3)).prepare(site)) == 1


@pytest.mark.parametrize("weights", [(), (1.0, 0.0), (-1.0,), (float("nan"),), [1.0], 1.0])
def test_wrong_weights(weights: Any) -> None:
    with pytest.raises(ConfigurationError, match="weights must be a tuple of numbers > 0, one for each loss"):
        TotalLoss(weights=weights)


@pytest.mark.parametrize("shapes", [((1,),), ((1,), (2,)), ((1,), (1,), (1,))])
def test_wrong_inputs(shapes: Any) -> None:
    with pytest.raises(ValueError, match=r"expected 2 losses of shape \(1,\)"):
        TotalLoss(weights=(1.0, 2.0)).output_shape(*shapes)
