"""What GELU, SiLU and HardSwish have in common."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from crossbow.kernels import why_not_compiled
from crossbow.ops import GELU, HardSwish, SiLU
from crossbow.ops.gated import Gated
from crossbow.testing import check_gradients, run_operator
from crossbow.types import Phase

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
DEVICES = pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
OPERATORS: dict[Gated, Callable[[float], float]] = {
    GELU(): lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    GELU(approximate="tanh"): lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    SiLU(): lambda x: x / (1 + math.exp(-x)),
    HardSwish(): lambda x: x * min(max(x + 3, 0), 6) / 6,
}


@pytest.mark.parametrize("kernel", OPERATORS, ids=str)
def test_formula(kernel: Gated) -> None:
    x = np.linspace(-7, 7, 57)[None]
    (y,) = run_operator(kernel, [x], dtype=np.float64, phase=Phase.CHECK).outputs
    np.testing.assert_allclose(y[0], [OPERATORS[kernel](float(value)) for value in x[0]], rtol=1e-9, atol=1e-15)
    assert kernel.output_shape((2, 3, 4)) == (2, 3, 4)


@pytest.mark.parametrize("kernel", OPERATORS, ids=str)
def test_gradients(kernel: Gated) -> None:
    check_gradients(kernel, [(3, 4, 2, 5)])


@DEVICES
@pytest.mark.parametrize("kernel", OPERATORS, ids=str)
def test_far_from_zero_it_is_zero_or_the_identity(kernel: Gated, device: str) -> None:
    x = np.array([[-1e12, -1e4, 1e4, 1e12]], np.float32)
    run = run_operator(kernel, [x], output_gradient=np.ones((1, 4), np.float32), device=device)
    np.testing.assert_array_equal(run.outputs[0], [[0, 0, 1e4, np.float32(1e12)]])
    np.testing.assert_array_equal(run.input_gradients[0], [[0, 0, 1, 1]])


@DEVICES
@pytest.mark.parametrize("kernel", OPERATORS, ids=str)
def test_in_place(kernel: Gated, device: str) -> None:
    x, dy = np.random.default_rng(0).standard_normal((2, 3, 37)).astype(np.float32)
    apart, together = (run_operator(kernel, [x], output_gradient=dy, in_place=p, device=device) for p in (False, True))
    np.testing.assert_array_equal(apart.outputs[0], together.outputs[0])
    np.testing.assert_array_equal(apart.input_gradients[0], together.input_gradients[0])
