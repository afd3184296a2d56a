"""The passes of an interpolation."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.requests import Interpolation
from crossbow.kernels.requests.interpolation import AxisPass, axis_passes
from crossbow.types import Layout, Tensor

FLOAT32 = np.dtype(np.float32)
TWICE, SAME = Interpolation(0.5, 0.0, False), Interpolation(1.0, 0.0, False)


def test_axes_are_enlarged_one_after_the_other() -> None:
    x, y = Tensor((2, 3, 4, 5), FLOAT32), Tensor((2, 3, 8, 10), FLOAT32)
    assert axis_passes(x, y, [TWICE, TWICE]) == [AxisPass(0, 6, 4, 8, 5, TWICE), AxisPass(1, 48, 5, 10, 1, TWICE)]
    x, y = (Tensor(tensor.shape, FLOAT32, Layout.CHANNELS_LAST) for tensor in (x, y))
    assert axis_passes(x, y, [TWICE, TWICE]) == [AxisPass(0, 2, 4, 8, 15, TWICE), AxisPass(1, 16, 5, 10, 3, TWICE)]


def test_an_axis_that_stays_has_no_pass_unless_all_stay() -> None:
    x, y = Tensor((2, 3, 4, 5), FLOAT32), Tensor((2, 3, 4, 10), FLOAT32)
    assert [each.axis for each in axis_passes(x, y, [SAME, TWICE])] == [1]
    assert [each.axis for each in axis_passes(x, x, [SAME, SAME])] == [0]
    shifted = Interpolation(1.0, 0.25, True)  # the sizes stay, the values do not
    assert [each.axis for each in axis_passes(x, x, [SAME, shifted])] == [1]
