"""Compiled interpolation against the reference, in both layouts."""

from __future__ import annotations

import pytest

from crossbow.kernels.requests import Interpolation, InterpolationBackward, InterpolationForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, both, close, draw, tensor

TWICE, BETWEEN = Interpolation(0.5, 0.0, False), Interpolation(0.5, -0.25, True)
THIRDS, CORNERS = Interpolation(1 / 3, 0.0, False), Interpolation(0.375, 0.0, True)
"""Factors 2, 2, 3, and from 4 to 9 positions with the corners aligned."""


@pytest.mark.parametrize(
    ("x", "y", "axes"),
    [
        ((2, 3, 4, 5), (2, 3, 8, 10), (TWICE, TWICE)),
        ((2, 20, 4, 5), (2, 20, 8, 10), (BETWEEN, BETWEEN)),
        ((2, 3, 4, 2), (2, 3, 9, 6), (CORNERS, THIRDS)),
        ((2, 3, 4, 5), (2, 3, 4, 10), (Interpolation(1.0, 0.0, False), TWICE)),
        ((2, 3, 4), (2, 3, 9), (CORNERS,)),
        ((1, 2, 2, 3, 2), (1, 2, 4, 6, 4), (BETWEEN, TWICE, BETWEEN)),
    ],
)
def test_interpolation(x: Shape, y: Shape, axes: tuple[Interpolation, ...]) -> None:
    small, large = tensor(x), tensor(y)
    tensors = {"input0": small, "output": large}
    actual, expected = both(
        COMPILED, InterpolationForward(small, large, axes), tensors, {"input0": draw(x)}, by="numba"
    )
    close(actual["output"], expected["output"], len(axes))
    tensors = {"output_gradient": large, "input_gradient": small}
    request, values = InterpolationBackward(large, small, axes), {"output_gradient": draw(y)}
    actual, expected = both(COMPILED, request, tensors, values, by="numba")
    close(actual["input_gradient"], expected["input_gradient"], 9)


def test_two_layouts_are_left_to_the_reference() -> None:
    x, y = Tensor((2, 3, 4, 5), FLOAT32), Tensor((2, 3, 8, 10), FLOAT32, Layout.CHANNELS_LAST)
    assert COMPILED.prepare(InterpolationForward(x, y, (TWICE, TWICE))).name.endswith("reference")
