"""Sums of many numbers in float32 are added up in float64: their errors do not grow with how many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.ops import BatchNorm, InnerProduct, Pool, Scale
from crossbow.testing import run_operator

EXACT = 4e-7
"""Largest error, relative to the largest result."""
GENERATOR = np.random.default_rng(0)
X = (GENERATOR.standard_normal((100_000, 4)) + 3).astype(np.float32)
DY = GENERATOR.standard_normal(X.shape).astype(np.float32)


def exact(values: NDArray[Any], received: NDArray[Any]) -> None:
    expected = values.sum(axis=0, dtype=np.float64)
    assert np.max(np.abs(received - expected)) < EXACT * np.max(np.abs(expected))


@pytest.mark.parametrize("kernel", [InnerProduct(number_of_outputs=4), BatchNorm(), Scale(bias=True)], ids=str)
def test_gradients_of_biases(kernel: Any) -> None:
    run = run_operator(kernel, [X], output_gradient=DY)
    exact(DY, run.variable_gradients["bias"])


def test_gradients_of_factors() -> None:
    exact(DY * X, run_operator(Scale(), [X], output_gradient=DY).variable_gradients["weights"])


def test_statistics() -> None:
    run = run_operator(BatchNorm(moving_average_fraction=0.0), [X])
    np.testing.assert_allclose(run.statistics["running_mean"], X.mean(0, np.float64), rtol=EXACT)
    np.testing.assert_allclose(run.statistics["running_variance"], X.var(0, np.float64, ddof=1), rtol=EXACT)


def test_averages() -> None:
    x = X[:8_192].reshape(2, 1, 128, 128)
    run = run_operator(Pool(method="average", kernel_size=(128, 128)), [x])
    np.testing.assert_allclose(run.outputs[0].reshape(-1), x.mean(axis=(1, 2, 3), dtype=np.float64), rtol=EXACT)
