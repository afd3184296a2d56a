"""Copies in logical order, whatever the order in memory."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import CopyBackward, CopyForward
from crossbow.types import Shape
from tests.kernels.reference.running import channels_last, draw, nan, run, tensor


@pytest.mark.parametrize("target", [(2, 3, 4, 5), (2, 60), (6, 20), (120,), (5, 4, 3, 2)])
def test_elements_keep_their_logical_order(target: Shape) -> None:
    shape = (2, 3, 4, 5)
    x, t, library = draw(*shape), tensor(shape), Reference(np.float64)
    for source in (x, channels_last(x)):
        y = nan(target) if len(target) != 4 else channels_last(nan(target))
        run(library.prepare(CopyForward(t, tensor(target))), input0=source, output=y)
        assert y.ravel().tolist() == x.ravel().tolist()
        dx = channels_last(nan(shape))
        run(library.prepare(CopyBackward(tensor(target), t)), output_gradient=y, input_gradient=dx)
        np.testing.assert_array_equal(dx, x)
