"""A loss of numbers that are none is none: otherwise a run that diverged would look healthy."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels import why_not_onednn
from crossbow.ops import EuclideanLoss, Kernel, SoftMax, SoftMaxLoss
from crossbow.testing.arguments import Numbers, library_of
from crossbow.testing.bench import Bench

fast = pytest.mark.skipif(why_not_onednn() is not None, reason=f"no oneDNN: {why_not_onednn()}")
FLOAT32 = np.dtype(np.float32)


def forward(kernel: Kernel, x: Numbers, labels: Numbers | None, device: str) -> Numbers:
    """As `run_operator`, which refuses such an input."""
    bench = Bench(kernel, library_of(device, FLOAT32), FLOAT32, [x.shape], labels)
    bench.load([x], {}, task=0, examples=len(x))
    return bench.forward()


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize(
    ("kernel", "labels"),
    [
        (SoftMaxLoss(), np.array([0, 1], np.int32)),
        (EuclideanLoss(), np.zeros((2, 2), np.float32)),
        (SoftMax(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_losses_pass_it_on(kernel: Kernel, labels: Numbers | None, device: str) -> None:
    x = np.array([[0.5, 0.5], [np.nan, np.nan]], np.float32)
    output = forward(kernel, x, labels, device)
    assert np.isnan(output[-1]).all()


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
def test_a_probability_of_zero_costs_a_finite_amount(device: str) -> None:
    loss = forward(SoftMaxLoss(), np.array([[1.0, 0.0]], np.float32), np.array([1], np.int32), device)
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny), rel=1e-5)


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
def test_large_scores_do_not_overflow(device: str) -> None:
    output = forward(SoftMax(), np.array([[1e4, -1e4, 1e4, 0]], np.float32), None, device)
    np.testing.assert_allclose(output, [[0.5, 0, 0.5, 0]])
