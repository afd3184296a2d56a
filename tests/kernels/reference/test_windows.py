"""Windows over spatial axes, position by position."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.reference.windows import inside, padded, positions
from crossbow.kernels.requests import WindowGeometry
from crossbow.types import Shape
from tests.kernels.reference.running import draw

CASES: list[tuple[Shape, Shape, WindowGeometry]] = [
    ((2, 3, 7), (2, 3, 5), WindowGeometry((3,))),
    ((1, 2, 5, 6), (1, 2, 3, 2), WindowGeometry((2, 3), (2, 3), ((1, 0), (2, 1)))),
    ((1, 2, 5, 6), (1, 2, 2, 3), WindowGeometry((2, 2), (3, 2), dilation=(2, 3))),
    ((1, 2, 5, 6), (1, 2, 3, 4), WindowGeometry((2, 2), (2, 2))),  # the last windows are beyond the image
    ((1, 1, 3, 3, 3), (1, 1, 2, 2, 2), WindowGeometry((2, 2, 2))),
]


@pytest.mark.parametrize(("shape", "output", "g"), CASES)
def test_every_window_has_the_elements_of_its_positions(shape: Shape, output: Shape, g: WindowGeometry) -> None:
    x = draw(*shape)
    wide = padded(x, output, g, -9.0)
    found = {number: wide[places] for number, places in positions(output, g)}
    assert list(found) == list(range(int(np.prod(g.kernel))))
    for number, offsets in enumerate(np.ndindex(*g.kernel)):
        assert found[number].shape == output
        for window in np.ndindex(*output[2:]):
            axes = zip(window, g.stride, offsets, g.dilation, g.padding, strict=True)
            place = tuple(i * s + u * d - before for i, s, u, d, (before, _) in axes)
            within = all(0 <= index < size for index, size in zip(place, shape[2:], strict=True))
            expected = x[(..., *place)] if within else np.full(shape[:2], -9.0)
            np.testing.assert_array_equal(found[number][(..., *window)], expected)


@pytest.mark.parametrize(("shape", "output", "g"), CASES)
def test_the_inside_of_the_padding_is_the_input(shape: Shape, output: Shape, g: WindowGeometry) -> None:
    x = draw(*shape)
    wide = padded(x, output, g, 0.0)
    np.testing.assert_array_equal(inside(wide, shape, g), x)
    inside(wide, shape, g)[...] = 1  # a view
    assert wide.sum() == x.size
