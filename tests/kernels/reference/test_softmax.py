"""Softmax and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import SoftmaxBackward, SoftmaxForward
from tests.kernels.reference.running import DTYPES, draw, nan, run, tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_against_the_formulas(axis: int, dtype: Any) -> None:
    """Of large numbers, whose exponentials overflow; the gradient by the Jacobian y_i (δ_ij − y_j)."""
    x, dy = draw(3, 4, 5, dtype=dtype) + dtype(1e4), draw(3, 4, 5, dtype=dtype, seed=1)
    library, t, y, dx = Reference(dtype), tensor(x.shape, dtype), nan(x.shape, dtype), nan(x.shape, dtype)
    run(library.prepare(SoftmaxForward(t, t, axis)), input0=x, output=y)
    run(library.prepare(SoftmaxBackward(t, t, t, axis)), output=y, output_gradient=dy, input_gradient=dx)
    powers = np.exp(np.moveaxis(x.astype(np.float64), axis, -1) - 1e4)
    exact = powers / powers.sum(axis=-1, keepdims=True)
    jacobian = np.eye(exact.shape[-1]) * exact[..., None] - exact[..., None] * exact[..., None, :]
    tolerance = 1e-12 if dtype is np.float64 else 1e-6
    np.testing.assert_allclose(np.moveaxis(y, axis, -1), exact, rtol=0, atol=tolerance)
    gradient = np.einsum("...ij,...j->...i", jacobian, np.moveaxis(dy, axis, -1))
    np.testing.assert_allclose(np.moveaxis(dx, axis, -1), gradient, rtol=0, atol=tolerance)


def test_non_finite_numbers() -> None:
    x, y, t = np.array([[0, -np.inf], [np.nan, 0], [np.inf, 0], [-np.inf, -np.inf]]), nan((4, 2)), tensor((4, 2))
    with np.errstate(invalid="ignore"):
        run(Reference(np.float64).prepare(SoftmaxForward(t, t, 1)), input0=x, output=y)
    np.testing.assert_array_equal(y, [[1, 0], *[[np.nan, np.nan]] * 3])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_of_nothing(shape: tuple[int, int]) -> None:
    t, library = tensor(shape), Reference(np.float64)
    run(library.prepare(SoftmaxForward(t, t, 1)), input0=nan(shape), output=nan(shape))
    run(
        library.prepare(SoftmaxBackward(t, t, t, 1)),
        output=nan(shape), output_gradient=nan(shape), input_gradient=nan(shape),
    )  # fmt: skip
