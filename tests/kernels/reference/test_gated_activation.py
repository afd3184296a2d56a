"""Activation functions with gates, and their derivatives from their inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import GatedActivationBackward, GatedActivationForward
from tests.kernels.reference.running import DTYPES, draw, nan, run, tensor

X = np.array([-1e30, -800, -3, -2, -0.5, 0, 0.75, 3, 800, 1e30, np.nan])
NEAR = X[2:8]
GATES: dict[str, list[float]] = {
    "gelu": [0.5 + 0.5 * math.erf(x * math.sqrt(0.5)) for x in NEAR],
    "gelu_tanh": [0.5 + 0.5 * math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)) for x in NEAR],
    "silu": [1 / (1 + math.exp(-x)) for x in NEAR],
    "hard_swish": [0, 1 / 6, 2.5 / 6, 0.5, 3.75 / 6, 1],
}
gates = pytest.mark.parametrize("gate", GATES)


@pytest.mark.parametrize("dtype", DTYPES)
@gates
def test_forward(gate: str, dtype: Any) -> None:
    t, y = tensor(X.shape, dtype), nan(X.shape, dtype)
    with np.errstate(all="raise", under="ignore", invalid="ignore"):  # nothing overflows
        run(Reference(dtype).prepare(GatedActivationForward(t, t, gate)), input0=X.astype(dtype), output=y)
    expected = X * np.array([0, 0, *GATES[gate], 1, 1, np.nan])
    np.testing.assert_allclose(y, expected, rtol=2e-6 if dtype is np.float32 else 1e-12)


@gates
def test_the_derivative_is_that_of_a_difference(gate: str) -> None:
    x, dy, step = np.array([-4.0, -1.2, -0.4, 0.0, 0.7, 2.5, 5.0]), draw(7), 1e-6
    t, results, dx = tensor((7,)), [], nan((7,))
    library = Reference(np.float64)
    for moved in (x - step, x + step):
        results.append(nan((7,)))
        run(library.prepare(GatedActivationForward(t, t, gate)), input0=moved, output=results[-1])
    backward = library.prepare(GatedActivationBackward(t, t, t, gate))
    run(backward, input0=x, output_gradient=dy, input_gradient=dx)
    np.testing.assert_allclose(dx, dy * (results[1] - results[0]) / (2 * step), rtol=0, atol=1e-8)
