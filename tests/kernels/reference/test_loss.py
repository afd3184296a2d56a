from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import (
    EuclideanLossBackward,
    EuclideanLossForward,
    LabelAccuracy,
    SigmoidLossBackward,
    SigmoidLossForward,
    SoftmaxLossBackward,
    SoftmaxLossForward,
)
from tests.kernels.reference.running import DTYPES, Numbers, draw, nan, run, state, tensor

CLASSES = 5
N = 7


def probabilities(dtype: Any) -> Numbers:
    e = np.exp(draw(N, CLASSES))
    values: Numbers = (e / e.sum(axis=1, keepdims=True)).astype(dtype)
    return values


LABELS = np.array([0, 4, 2, 2, 1, 3, 0], np.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalisation", ["batch", "full", "valid", "none"])
@pytest.mark.parametrize("ignored", [None, 2, 4])
@pytest.mark.parametrize("examples", [0, 1, 5, 7])
def test_softmax_loss_against_loops(examples: int, ignored: int | None, normalisation: str, dtype: Any) -> None:
    p, labels = probabilities(dtype), tensor((N,), np.int32)
    total, counted = 0.0, 0
    gradient = np.zeros((N, CLASSES))
    for n in range(examples):
        if LABELS[n] != ignored:
            counted += 1
            total += -math.log(p[n, LABELS[n]])
            gradient[n] = p[n]
            gradient[n, LABELS[n]] -= 1
    normaliser = max(1, {"batch": examples, "full": examples, "valid": counted, "none": 1}[normalisation])
    buffers = {"input0": p, "labels": LABELS, "state": state(EXAMPLES=examples), "output": nan((1,), dtype)}
    buffers["input_gradient"] = nan(p.shape, dtype)
    library, t = Reference(dtype), tensor(p.shape, dtype)
    run(library.prepare(SoftmaxLossForward(t, labels, ignored, normalisation)), **buffers)
    run(library.prepare(SoftmaxLossBackward(t, labels, t, ignored, normalisation)), **buffers)
    tolerance = 1e-13 if dtype is np.float64 else 1e-6
    np.testing.assert_allclose(buffers["output"], [total / normaliser], rtol=tolerance)
    np.testing.assert_allclose(buffers["input_gradient"], gradient / normaliser, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("ignored", [None, 2])
@pytest.mark.parametrize("examples", [0, 3, 7])
def test_accuracy_against_sorting(examples: int, ignored: int | None, top_k: int) -> None:
    p = np.round(4 * draw(N, CLASSES)) / 4  # with ties
    right = [
        LABELS[n] in sorted(range(CLASSES), key=lambda c, n=n: (-p[n, c], c))[:top_k]  # type: ignore[misc]
        for n in range(examples)
        if LABELS[n] != ignored
    ]
    output = nan((1,))
    kernel = Reference("float64").prepare(LabelAccuracy(tensor(p.shape), tensor((N,), np.int32), top_k, ignored))
    run(kernel, input0=p, labels=LABELS, state=state(EXAMPLES=examples), output=output)
    assert output[0] == pytest.approx(sum(right) / max(1, len(right)))


@pytest.mark.parametrize("top_k", [1, 2])
def test_nan_is_never_right(top_k: int) -> None:
    p, output = np.array([[np.nan, 0.5], [0.5, np.nan], [np.nan, np.nan]]), nan((1,))
    kernel = Reference("float64").prepare(LabelAccuracy(tensor(p.shape), tensor((3,), np.int32), top_k, None))
    for label, expected in ((0, (0, 1 / 3)), (1, (0, 1 / 3))):
        run(kernel, input0=p, labels=np.full(3, label, np.int32), state=state(EXAMPLES=3), output=output)
        assert output[0] == pytest.approx(expected[top_k - 1])


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_out_of_range_is_named(label: int) -> None:
    library, t, labels = Reference("float64"), tensor((N, CLASSES)), LABELS.copy()
    labels[3] = label
    buffers = {"input0": probabilities(np.float64), "labels": labels, "state": state(EXAMPLES=N)}
    buffers |= {"output": nan((1,)), "input_gradient": nan((N, CLASSES))}
    numbers = tensor((N,), np.int32)
    for kernel in (
        library.prepare(SoftmaxLossForward(t, numbers, None, "batch")),
        library.prepare(SoftmaxLossBackward(t, numbers, t, None, "batch")),
        library.prepare(LabelAccuracy(t, numbers, 1, None)),
    ):
        with pytest.raises(ValueError, match=rf"expected labels from 0 to 4\. Received: {label}"):
            run(kernel, **buffers)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("examples", [0, 2, 3])
def test_euclidean_loss_against_loops(examples: int, dtype: Any) -> None:
    x, labels = draw(3, 2, 2, dtype=dtype), draw(3, 2, 2, dtype=dtype, seed=1)
    output, gradient = nan((1,), dtype), nan(x.shape, dtype)
    library, t = Reference(dtype), tensor(x.shape, dtype)
    buffers = {"input0": x, "labels": labels, "state": state(EXAMPLES=examples)}
    run(library.prepare(EuclideanLossForward(t, t)), **buffers, output=output)
    run(library.prepare(EuclideanLossBackward(t, t, t)), **buffers, input_gradient=gradient)
    total = sum(float(a - b) ** 2 for n in range(examples) for a, b in zip(x[n].flat, labels[n].flat, strict=True))
    expected = (x - labels) / max(1, examples)
    expected[examples:] = 0
    tolerance = 1e-13 if dtype is np.float64 else 1e-6
    np.testing.assert_allclose(output, [total / (2 * max(1, examples))], rtol=tolerance)
    np.testing.assert_allclose(gradient, expected, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("examples", [0, 2, 3])
@pytest.mark.parametrize("normalisation", ["full", "batch", "none"])
def test_sigmoid_loss_against_loops(examples: int, normalisation: str, dtype: Any) -> None:
    x, labels = 3 * draw(3, 2, 2, dtype=dtype), (np.abs(draw(3, 2, 2, dtype=dtype, seed=1)) % 1).astype(dtype)
    output, gradient = nan((1,), dtype), nan(x.shape, dtype)
    library, t = Reference(dtype), tensor(x.shape, dtype)
    buffers = {"input0": x, "labels": labels, "state": state(EXAMPLES=examples)}
    run(library.prepare(SigmoidLossForward(t, t, normalisation)), **buffers, output=output)
    run(library.prepare(SigmoidLossBackward(t, t, t, normalisation)), **buffers, input_gradient=gradient)
    divisor = max(1, {"full": 4 * examples, "batch": examples, "none": 1}[normalisation])
    total, expected = 0.0, np.zeros(x.shape)
    for at in np.ndindex(examples, 2, 2):
        p, t_ = 1 / (1 + math.exp(-float(x[at]))), float(labels[at])
        total -= t_ * math.log(p) + (1 - t_) * math.log(1 - p)
        expected[at] = (p - t_) / divisor
    tolerance = 1e-13 if dtype is np.float64 else 1e-6
    np.testing.assert_allclose(output, [total / divisor], rtol=tolerance)
    np.testing.assert_allclose(gradient, expected, rtol=tolerance, atol=tolerance)
