"""Slices and padding by hand, with their gradients."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import PadBackward, PadForward, SliceBackward, SliceForward
from tests.kernels.reference.running import draw, nan, run, tensor

LIBRARY = Reference(np.float64)


@pytest.mark.parametrize(
    ("axis", "start", "step", "count"), [(0, 1, 1, 2), (1, 0, 2, 3), (1, 1, 3, 2), (2, 3, 1, 1), (2, 1, 1, 0)]
)
def test_a_slice_and_its_gradient(axis: int, start: int, step: int, count: int) -> None:
    x, places = draw(3, 5, 4), [start + step * number for number in range(count)]
    part = tuple(count if dimension == axis else size for dimension, size in enumerate(x.shape))
    t, y, dy, dx = tensor(x.shape), nan(part), draw(*part, seed=1), nan(x.shape)
    run(LIBRARY.prepare(SliceForward(t, tensor(part), axis, start, step)), input0=x, output=y)
    np.testing.assert_array_equal(y, x.take(places, axis))
    backward = LIBRARY.prepare(SliceBackward(tensor(part), t, axis, start, step))
    run(backward, output_gradient=dy, input_gradient=dx)
    np.testing.assert_array_equal(dx.take(places, axis), dy)
    assert np.count_nonzero(dx) == dy.size


@pytest.mark.parametrize("value", [0.0, -1.5, np.inf])
def test_padding_and_its_gradient(value: float) -> None:
    x, y, dx = draw(2, 3), nan((4, 6)), nan((2, 3))
    run(LIBRARY.prepare(PadForward(tensor((2, 3)), tensor((4, 6)), (0, 2), value)), input0=x, output=y)
    expected = np.full((4, 6), value)
    expected[:2, 2:5] = x
    np.testing.assert_array_equal(y, expected)
    run(LIBRARY.prepare(PadBackward(tensor((4, 6)), tensor((2, 3)), (0, 2))), output_gradient=y, input_gradient=dx)
    np.testing.assert_array_equal(dx, x)
