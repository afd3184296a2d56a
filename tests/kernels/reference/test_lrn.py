"""Local response normalisation against loops, in windows of even and odd sizes; its gradient against differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import LRNBackward, LRNForward, ResponseGeometry
from crossbow.types import Phase, Shape
from tests.kernels.reference.running import Numbers, draw, nan, run, tensor

LIBRARY = Reference(np.float64)


def forward(x: Numbers, g: ResponseGeometry) -> Numbers:
    t, y = tensor(x.shape), nan(x.shape)
    run(LIBRARY.prepare(LRNForward(t, t, g, Phase.TRAIN)), input0=x, output=y)
    return y


def looped(x: Numbers, g: ResponseGeometry) -> Numbers:
    """Element by element; outside the tensor are zeros. Of an even window, the element after the middle is its last."""
    before = g.size // 2 if g.leads else (g.size - 1) // 2
    y = np.empty(x.shape)
    for place in np.ndindex(*x.shape):
        total = 0.0
        for offsets in itertools.product(range(-before, g.size - before), repeat=len(g.axes)):
            other = list(place)
            for axis, offset in zip(g.axes, offsets, strict=True):
                other[axis] += offset
            if all(0 <= index < size for index, size in zip(other, x.shape, strict=True)):
                total += x[tuple(other)] ** 2
        y[place] = x[place] / (g.kappa + g.share * total) ** g.beta
    return y


GEOMETRIES = [
    ResponseGeometry(axes, size, 0.3, 0.6, 2.0, leads)
    for axes in ((1,), (2, 3))
    for size, leads in ((1, False), (3, False), (4, False), (4, True), (9, False))
]


@pytest.mark.parametrize("g", GEOMETRIES, ids=str)
def test_it_agrees_with_loops(g: ResponseGeometry) -> None:
    x = draw(2, 5, 3, 4)
    np.testing.assert_allclose(forward(x, g), looped(x, g), rtol=1e-13)


@pytest.mark.parametrize("g", GEOMETRIES, ids=str)
def test_the_gradient_is_that_of_differences(g: ResponseGeometry) -> None:
    x, dy, dx, t = draw(1, 5, 2, 3), draw(1, 5, 2, 3, seed=1), nan((1, 5, 2, 3)), tensor((1, 5, 2, 3))
    run(LIBRARY.prepare(LRNBackward(t, t, t, g)), input0=x, output_gradient=dy, input_gradient=dx)
    for place in np.ndindex(*x.shape):
        step = np.zeros(x.shape)
        step[place] = 1e-6
        difference = ((forward(x + step, g) - forward(x - step, g)) * dy).sum() / 2e-6
        assert dx[place] == pytest.approx(difference, abs=1e-8)


@pytest.mark.parametrize("shape", [(0, 3, 2, 2), (2, 0, 2, 2)])
def test_of_nothing(shape: Shape) -> None:
    assert forward(nan(shape), ResponseGeometry((1,), 3, 0.3, 0.75, 1.0)).shape == shape
