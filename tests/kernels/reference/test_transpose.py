"""Transposes of axes and of parts of them, and back."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import TransposeBackward, TransposeForward
from crossbow.types import Shape
from tests.kernels.reference.running import channels_last, draw, nan, run, tensor


@pytest.mark.parametrize(
    ("shape", "sizes", "order", "target"),
    [
        ((2, 3), (2, 3), (1, 0), (3, 2)),
        ((2, 3, 4, 5), (2, 3, 4, 5), (0, 2, 3, 1), (2, 4, 5, 3)),
        ((2, 6, 4, 5), (2, 2, 3, 4, 5), (0, 2, 1, 3, 4), (2, 6, 4, 5)),  # a shuffle of channels
        ((2, 4, 3, 5), (2, 2, 2, 3, 5), (0, 3, 1, 4, 2), (2, 3, 10, 2)),
        ((0, 3), (0, 3), (1, 0), (3, 0)),
    ],
)
def test_every_element_arrives_at_its_place(shape: Shape, sizes: Shape, order: tuple[int, ...], target: Shape) -> None:
    x, library = draw(*shape), Reference(np.float64)
    expected = np.empty([sizes[axis] for axis in order])
    for place in np.ndindex(*sizes):
        expected[tuple(place[axis] for axis in order)] = x.reshape(sizes)[place]
    for source in (x, channels_last(x)) if len(shape) == 4 else (x,):
        y, dx = nan(target), nan(shape)
        run(library.prepare(TransposeForward(tensor(shape), tensor(target), sizes, order)), input0=source, output=y)
        np.testing.assert_array_equal(y, expected.reshape(target))
        backward = library.prepare(TransposeBackward(tensor(target), tensor(shape), sizes, order))
        run(backward, output_gradient=y, input_gradient=dx)
        np.testing.assert_array_equal(dx, x)
