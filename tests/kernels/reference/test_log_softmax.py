"""The logarithm of softmax, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import LogSoftmaxBackward, LogSoftmaxForward
from tests.kernels.reference.running import DTYPES, draw, nan, run, tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_against_the_formulas(axis: int, dtype: Any) -> None:
    """Of large numbers, whose exponentials overflow; the gradient by the Jacobian δ_ij − p_j."""
    x, dy = 1e4 + draw(3, 4, 5, dtype=dtype), draw(3, 4, 5, dtype=dtype, seed=1)
    x = x.astype(dtype)
    library, t, y, dx = Reference(dtype), tensor(x.shape, dtype), nan(x.shape, dtype), nan(x.shape, dtype)
    run(library.prepare(LogSoftmaxForward(t, t, axis)), input0=x, output=y)
    run(library.prepare(LogSoftmaxBackward(t, t, t, axis)), output=y, output_gradient=dy, input_gradient=dx)
    powers = np.exp(np.moveaxis(x.astype(np.float64), axis, -1) - 1e4)
    p = powers / powers.sum(axis=-1, keepdims=True)
    tolerance = 1e-12 if dtype is np.float64 else 2e-6
    np.testing.assert_allclose(np.moveaxis(y, axis, -1), np.log(p), rtol=0, atol=tolerance)
    jacobian = np.eye(p.shape[-1]) - p[..., None]
    gradient = np.einsum("...ij,...j->...i", jacobian, np.moveaxis(dy, axis, -1))
    np.testing.assert_allclose(np.moveaxis(dx, axis, -1), gradient, rtol=0, atol=tolerance)


def test_small_probabilities_keep_their_digits() -> None:
    """exp(−1000) is 0, and its logarithm −1000."""
    y, t = nan((1, 2)), tensor((1, 2))
    run(Reference(np.float64).prepare(LogSoftmaxForward(t, t, 1)), input0=np.array([[0.0, 1000]]), output=y)
    assert y.tolist() == [[-1000, 0]]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_of_nothing(shape: tuple[int, int]) -> None:
    t, library = tensor(shape), Reference(np.float64)
    run(library.prepare(LogSoftmaxForward(t, t, 1)), input0=nan(shape), output=nan(shape))
    run(
        library.prepare(LogSoftmaxBackward(t, t, t, 1)),
        output=nan(shape), output_gradient=nan(shape), input_gradient=nan(shape),
    )  # fmt: skip
