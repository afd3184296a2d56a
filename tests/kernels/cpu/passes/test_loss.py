"""Compiled losses and accuracy against the reference: padding, ignored labels, both layouts, labels out of range."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.native import NativeError
from crossbow.kernels.requests import (
    EuclideanLossBackward,
    EuclideanLossForward,
    LabelAccuracy,
    SigmoidLossBackward,
    SigmoidLossForward,
    SoftmaxLossBackward,
    SoftmaxLossForward,
)
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, Numbers, both, close, draw, execute, memory, state, tensor

INT32 = np.dtype(np.int32)
ONE = Tensor((1,), FLOAT32)
ROWS: list[Shape] = [(5, 7), (5, 7, 2, 3)]
"""One label for each example, and one for each pixel."""


def given(shape: Shape, examples: int) -> dict[str, Numbers]:
    """Logits, their probabilities, of which one is 0, and labels."""
    logits = 3 * draw(shape)
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    p[0, 1] = 0
    places = (shape[0], *shape[2:])
    labels = np.random.default_rng(0).integers(0, 7, places).astype(np.int32)
    labels[0], labels[1] = 1, 2
    return {"logits": logits, "input0": p, "labels": labels, "state": state(EXAMPLES=examples)}


@pairwise
@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("examples", [5, 3, 1, 0])
@pytest.mark.parametrize("ignored", [None, 2])
@pytest.mark.parametrize("normalisation", ["batch", "full", "valid", "none"])
@pytest.mark.parametrize("from_logits", [False, True])
def test_softmax_loss(shape: Shape, examples: int, ignored: int | None, normalisation: str, from_logits: bool) -> None:
    values, t = given(shape, examples), tensor(shape)
    labels = Tensor(values["labels"].shape, INT32)
    forward = SoftmaxLossForward(t, labels, ignored, normalisation, t if from_logits else None)
    used = {role: t for role in forward.reads if role in ("logits", "input0")}
    actual, expected = both(COMPILED, forward, {**used, "output": ONE}, values, by="numba")
    close(actual["output"], expected["output"], 30)
    backward = SoftmaxLossBackward(t, labels, t, ignored, normalisation)
    actual, expected = both(COMPILED, backward, {"input0": t, "input_gradient": t}, values, by="numba")
    np.testing.assert_array_equal(actual["input_gradient"], expected["input_gradient"])


@pytest.mark.parametrize("from_logits", [False, True])
def test_nan_reaches_the_loss(from_logits: bool) -> None:
    values, t, labels = given((5, 7), 5), tensor((5, 7)), Tensor((5,), INT32)
    for role in ("logits", "input0"):
        values[role][3] = np.nan
    buffers = {**values, "output": np.zeros(1, np.float32)}
    execute(COMPILED.prepare(SoftmaxLossForward(t, labels, None, "batch", t if from_logits else None)), buffers)
    assert np.isnan(buffers["output"][0])


@pairwise
@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("examples", [5, 2, 0])
@pytest.mark.parametrize("top_k", [1, 2, 7])
@pytest.mark.parametrize("ignored", [None, 2])
def test_accuracy_with_ties_and_nan(shape: Shape, examples: int, top_k: int, ignored: int | None) -> None:
    values, t = given(shape, examples), tensor(shape)
    p = np.random.default_rng(top_k).integers(0, 3, shape).astype(np.float32)
    p[3, 2] = p[4, 1] = np.nan
    request = LabelAccuracy(t, Tensor(values["labels"].shape, INT32), top_k, ignored)
    actual, expected = both(COMPILED, request, {"input0": t, "output": ONE}, {**values, "input0": p}, by="numba")
    np.testing.assert_array_equal(actual["output"], expected["output"])


@pytest.mark.parametrize("wrong", [-1, 7])
def test_a_label_outside_the_classes_is_an_error(wrong: int) -> None:
    t, labels = tensor((2, 7)), Tensor((2,), INT32)
    buffers: dict[str, Numbers] = {"input0": memory(t, np.full((2, 7), 1 / 7)), "labels": np.array([0, wrong], INT32)}
    buffers |= {"logits": buffers["input0"], "state": state(EXAMPLES=2)}
    buffers |= {"output": np.zeros(1, np.float32), "input_gradient": memory(t)}
    for request in (
        SoftmaxLossForward(t, labels, None, "batch"),
        SoftmaxLossForward(t, labels, None, "batch", t),
        SoftmaxLossBackward(t, labels, t, None, "batch"),
        LabelAccuracy(t, labels, 1, None),
    ):
        with pytest.raises(NativeError, match="a label is not one of the classes"):
            execute(COMPILED.prepare(request), buffers)
        execute(COMPILED.prepare(request), {**buffers, "state": state(EXAMPLES=1)})  # labels in the padding are ignored


@pytest.mark.parametrize("examples", [4, 3, 0])
@pytest.mark.parametrize("shape", [(4, 3), (4, 1), (4, 2, 3)])
def test_euclidean_loss(shape: Shape, examples: int) -> None:
    t = tensor(shape)
    values = {"input0": draw(shape), "labels": draw(shape, 1), "state": state(EXAMPLES=examples)}
    tensors = {"input0": t, "labels": t, "output": ONE, "input_gradient": t}
    actual, expected = both(COMPILED, EuclideanLossForward(t, t), tensors, values, by="numba")
    close(actual["output"], expected["output"])
    actual, expected = both(COMPILED, EuclideanLossBackward(t, t, t), tensors, values, by="numba")
    np.testing.assert_array_equal(actual["input_gradient"], expected["input_gradient"])


@pytest.mark.parametrize("examples", [4, 3, 0])
@pytest.mark.parametrize("normalisation", ["full", "batch", "none"])
@pytest.mark.parametrize("scale", [1, 100])
def test_sigmoid_loss(examples: int, normalisation: str, scale: int) -> None:
    shape = (4, 2, 3)
    t = tensor(shape)
    values = {"input0": scale * draw(shape), "labels": np.abs(draw(shape, 1)) % 1, "state": state(EXAMPLES=examples)}
    tensors = {"input0": t, "labels": t, "output": ONE, "input_gradient": t}
    actual, expected = both(COMPILED, SigmoidLossForward(t, t, normalisation), tensors, values, by="numba")
    close(actual["output"], expected["output"])
    actual, expected = both(COMPILED, SigmoidLossBackward(t, t, t, normalisation), tensors, values, by="numba")
    close(actual["input_gradient"], expected["input_gradient"])


def test_other_requests_are_left_to_the_reference() -> None:
    last = Tensor((2, 3, 4, 5), FLOAT32, Layout.CHANNELS_LAST)
    plain = Tensor((2, 3, 4, 5), FLOAT32)
    one_each = Tensor((2,), INT32)
    for request in (
        EuclideanLossForward(last, plain),
        EuclideanLossBackward(plain, plain, last),
        SigmoidLossForward(last, plain, "full"),
        SigmoidLossBackward(plain, plain, last, "full"),
        LabelAccuracy(plain, one_each, 1, None),  # fewer labels than rows of classes
        SoftmaxLossForward(plain, one_each, None, "batch"),
        SoftmaxLossBackward(last, Tensor((2, 4, 5), INT32), plain, None, "batch"),
    ):
        assert COMPILED.prepare(request).name.endswith("reference")
