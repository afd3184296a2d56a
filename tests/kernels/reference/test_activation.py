"""Activation functions, and their derivatives from their outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import ActivationBackward, ActivationForward
from tests.kernels.reference.running import DTYPES, Numbers, draw, nan, run, tensor

X = np.array([-np.inf, -800, -2, -0.0, 0, 0.5, 0.75, 2, 800, np.inf, np.nan])
EXPECTED: dict[tuple[str, float], list[float]] = {
    ("relu", 0.0): [0, 0, 0, 0, 0, 0.5, 0.75, 2, 800, np.inf, np.nan],
    ("relu", 0.25): [-np.inf, -200, -0.5, 0, 0, 0.5, 0.75, 2, 800, np.inf, np.nan],
    ("clipped", 0.0): [0, 0, 0, 0, 0, 0.5, 0.75, 0.75, 0.75, 0.75, np.nan],
    ("tanh", 0.0): [-1, -1, *(np.expm1(2 * x) / (np.exp(2 * x) + 1) for x in X[2:8]), 1, 1, np.nan],
    ("sigmoid", 0.0): [0, 0, *(1 / (1 + np.exp(-x)) for x in X[2:8]), 1, 1, np.nan],
}
"""With a ceiling of 0.75."""
modes = pytest.mark.parametrize(("mode", "slope"), EXPECTED)


@pytest.mark.parametrize("dtype", DTYPES)
@modes
def test_forward(mode: str, slope: float, dtype: Any) -> None:
    t, y = tensor(X.shape, dtype), nan(X.shape, dtype)
    with np.errstate(all="raise", under="ignore", invalid="ignore"):  # nothing overflows
        run(Reference(dtype).prepare(ActivationForward(t, t, mode, slope, 0.75)), input0=X.astype(dtype), output=y)
    np.testing.assert_allclose(y, EXPECTED[mode, slope], rtol=1e-6 if dtype is np.float32 else 1e-14)


def backward(mode: str, slope: float, y: Numbers, dy: Numbers) -> Numbers:
    t, dx = tensor(y.shape), nan(y.shape)
    kernel = Reference(np.float64).prepare(ActivationBackward(t, t, t, mode, slope, 0.75))
    run(kernel, output=y, output_gradient=dy, input_gradient=dx)
    return dx


@modes
def test_the_derivative_is_that_of_a_difference(mode: str, slope: float) -> None:
    x, dy, step = np.array([-3.0, -0.4, 0.2, 0.6, 1.5]), draw(5), 1e-6
    t, results = tensor((5,)), []
    for moved in (x - step, x, x + step):
        results.append(nan((5,)))
        kernel = Reference(np.float64).prepare(ActivationForward(t, t, mode, slope, 0.75))
        run(kernel, input0=moved, output=results[-1])
    expected = dy * (results[2] - results[0]) / (2 * step)
    np.testing.assert_allclose(backward(mode, slope, results[1], dy), expected, rtol=0, atol=1e-8)


def test_at_a_kink_it_is_the_one_of_the_flat_side() -> None:
    ones = np.ones(3)
    np.testing.assert_array_equal(backward("relu", 0.0, np.array([0.0, -0.0, 1.0]), ones), [0, 0, 1])
    np.testing.assert_array_equal(backward("relu", 0.25, np.array([0.0, -1.0, 1.0]), ones), [0.25, 0.25, 1])
    np.testing.assert_array_equal(backward("clipped", 0.0, np.array([0.0, 0.75, 0.5]), ones), [0, 0, 1])
