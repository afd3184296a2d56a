"""Interpolation, position by position."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import Interpolation, InterpolationBackward, InterpolationForward
from tests.kernels.reference.running import draw, nan, run, tensor

LIBRARY = Reference("float64")


@pytest.mark.parametrize(
    ("interpolation", "target"),
    [
        (Interpolation(0.5, 0.0, False), 8),
        (Interpolation(0.5, -0.25, True), 8),
        (Interpolation(0.375, 0.0, True), 9),
        (Interpolation(1.6, 0.3, True), 2),
        (Interpolation(0.0, 0.0, True), 1),
        (Interpolation(0.9, 0.0, False), 5),
    ],
)
def test_against_loops(interpolation: Interpolation, target: int) -> None:
    x, dy = draw(2, 3, 4), draw(2, 3, target, seed=1)
    y, dx = np.zeros(dy.shape), np.zeros(x.shape)
    for i in range(target):
        position = max(interpolation.ratio * i + interpolation.offset, 0.0)
        lower = min(int(position), 3)
        part = position - lower if interpolation.linear and lower < 3 else 0.0
        y[..., i] = (1 - part) * x[..., lower] + part * x[..., min(lower + 1, 3)]
        dx[..., lower] += (1 - part) * dy[..., i]
        dx[..., min(lower + 1, 3)] += part * dy[..., i]
    small, large, output, gradient = tensor(x.shape), tensor(dy.shape), nan(dy.shape), nan(x.shape)
    run(LIBRARY.prepare(InterpolationForward(small, large, (interpolation,))), input0=x, output=output)
    backward = InterpolationBackward(large, small, (interpolation,))
    run(LIBRARY.prepare(backward), output_gradient=dy, input_gradient=gradient)
    np.testing.assert_allclose(output, y, rtol=1e-14)
    np.testing.assert_allclose(gradient, dx, rtol=1e-14)


def test_axes_one_after_the_other() -> None:
    """Twice as high by repetition, twice as wide between centres."""
    x, y = np.array([[[[4.0, 8.0]]]]), nan((1, 1, 2, 4))
    axes = (Interpolation(0.5, 0.0, False), Interpolation(0.5, -0.25, True))
    run(LIBRARY.prepare(InterpolationForward(tensor(x.shape), tensor(y.shape), axes)), input0=x, output=y)
    assert y.tolist() == [[[[4, 5, 7, 8], [4, 5, 7, 8]]]]
