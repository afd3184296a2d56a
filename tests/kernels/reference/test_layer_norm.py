"""Normalisation over some axes of every example, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import LayerNormBackward, LayerNormForward
from tests.kernels.reference.running import DTYPES, draw, nan, run, tensor

SHAPE = (3, 4, 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("axis", "number"), [(2, 1), (1, 1), (1, 2)])
def test_forward(axis: int, number: int, dtype: Any) -> None:
    own = tuple(range(axis, axis + number))
    shape = SHAPE[axis : axis + number]
    x, weights, bias = draw(*SHAPE, dtype=dtype), draw(*shape, dtype=dtype, seed=1), draw(*shape, dtype=dtype, seed=2)
    t, y, variable = tensor(SHAPE, dtype), nan(SHAPE, dtype), Variable(shape, np.dtype(dtype))
    kernel = Reference(dtype).prepare(LayerNormForward(t, variable, variable, t, axis, 0.25))
    run(kernel, input0=x, weights=weights, bias=bias, output=y)
    wide, trailing = x.astype(np.float64), (..., *[None] * (3 - axis - number))
    normalised = (wide - wide.mean(own, keepdims=True)) / np.sqrt(wide.var(own, keepdims=True) + 0.25)
    expected = normalised * weights[trailing] + bias[trailing]
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 if dtype is np.float32 else 1e-14)


def test_the_gradient_is_that_of_a_difference() -> None:
    x, weights, dy, direction = draw(*SHAPE), draw(5, seed=1), draw(*SHAPE, seed=2), draw(*SHAPE, seed=3)
    t, variable, library, step = tensor(SHAPE), Variable((5,), np.dtype(np.float64)), Reference(np.float64), 1e-6
    results = []
    for moved in (x - step * direction, x + step * direction):
        results.append(nan(SHAPE))
        forward = library.prepare(LayerNormForward(t, variable, None, t, 2, 1e-3))
        run(forward, input0=moved, weights=weights, output=results[-1])
    dx, dw = nan(SHAPE), nan((5,))
    backward = library.prepare(LayerNormBackward(t, t, variable, None, t, 2, 1e-3))
    run(backward, input0=x, output_gradient=dy, weights=weights, weights_gradient=dw, input_gradient=dx)
    assert (dx * direction).sum() == pytest.approx((dy * (results[1] - results[0])).sum() / (2 * step), rel=1e-6)
