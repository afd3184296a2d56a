"""Losses and metrics over the first state[EXAMPLES] examples of a batch; the rest is padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import State
from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import (
    EuclideanLossBackward,
    EuclideanLossForward,
    LabelAccuracy,
    SigmoidLossBackward,
    SigmoidLossForward,
    SoftmaxLossBackward,
    SoftmaxLossForward,
    Targets,
)
from crossbow.types import Array


@computes(SoftmaxLossForward, lambda request: request.logits is None)
def softmax_loss_forward(
    *,
    input0: Floats,
    labels: NDArray[np.int32],
    state: Array,
    output: Floats,
    ignored_label: int | None,
    normalisation: str,
    targets: Targets | None,
) -> None:
    """Σ t[c] · −log max(p[c], tiny) / normaliser."""
    values = _rows(input0)
    rows, classes = _counted(values, labels, state, ignored_label)
    tiny = np.finfo(input0.dtype).tiny  # so that a probability of 0 has a large, but finite loss
    losses = -np.log(np.maximum(values[rows], tiny))
    counted = _weight(classes, targets, values.shape[1])
    output[0] = _total(losses, classes, targets) / _normaliser(normalisation, state, labels, counted)


@computes(SoftmaxLossForward, lambda request: request.logits is not None)
def softmax_loss_of_logits(
    *,
    logits: Floats,
    labels: NDArray[np.int32],
    state: Array,
    output: Floats,
    ignored_label: int | None,
    normalisation: str,
    targets: Targets | None,
) -> None:
    """Σ t[c] · (log Σ exp x − x[c]) / normaliser."""
    values = _rows(logits)
    rows, classes = _counted(values, labels, state, ignored_label)
    x = values[rows].astype(np.float64)
    x -= x.max(axis=1, keepdims=True, initial=-np.inf)
    losses = np.log(np.exp(x).sum(axis=1, keepdims=True)) - x
    counted = _weight(classes, targets, values.shape[1])
    output[0] = _total(losses, classes, targets) / _normaliser(normalisation, state, labels, counted)


@computes(SoftmaxLossBackward)
def softmax_loss_backward(
    *,
    input0: Floats,
    labels: NDArray[np.int32],
    state: Array,
    input_gradient: Floats,
    ignored_label: int | None,
    normalisation: str,
    targets: Targets | None,
) -> None:
    """(p · Σ t[c] − t) / normaliser with respect to the logits; 0 for ignored labels and for padding."""
    values = _rows(input0)
    rows, classes = _counted(values, labels, state, ignored_label)
    gradient = np.zeros_like(values)
    normaliser = _normaliser(normalisation, state, labels, _weight(classes, targets, values.shape[1]))
    if targets is None:
        gradient[rows] = values[rows]
        gradient[rows, classes] -= 1
        gradient /= normaliser
    else:
        wanted = _targets(targets, classes, values.shape[1])
        gradient[rows] = (values[rows] * wanted.sum(axis=1, keepdims=True) - wanted) / normaliser
    classes_last = np.moveaxis(input_gradient, 1, -1)
    classes_last[...] = gradient.reshape(classes_last.shape)


@computes(EuclideanLossForward)
def euclidean_loss_forward(*, input0: Floats, labels: Floats, state: Array, output: Floats) -> None:
    """Σ (x − labels)² / (2 · examples)."""
    examples = _examples(state)
    difference = (input0 - labels.reshape(input0.shape))[:examples]
    output[0] = np.square(difference).sum() / (2 * max(examples, 1))


@computes(EuclideanLossBackward)
def euclidean_loss_backward(*, input0: Floats, labels: Floats, state: Array, input_gradient: Floats) -> None:
    """(x − labels) / examples; 0 for padding."""
    examples = _examples(state)
    np.subtract(input0, labels.reshape(input0.shape), out=input_gradient)
    input_gradient /= max(examples, 1)
    input_gradient[examples:] = 0


@computes(SigmoidLossForward)
def sigmoid_loss_forward(*, input0: Floats, labels: Floats, state: Array, output: Floats, normalisation: str) -> None:
    """Σ (max(x, 0) − t · x + log(1 + exp(−|x|))) / normaliser."""
    examples = _examples(state)
    x, t = input0[:examples].astype(np.float64), labels.reshape(input0.shape)[:examples]
    losses = np.maximum(x, 0) - t * x + np.log1p(np.exp(-np.abs(x)))
    output[0] = losses.sum() / _normaliser(normalisation, state, labels, 0)


@computes(SigmoidLossBackward)
def sigmoid_loss_backward(
    *, input0: Floats, labels: Floats, state: Array, input_gradient: Floats, normalisation: str
) -> None:
    """(1 / (1 + exp(−x)) − t) / normaliser; 0 for padding."""
    power = np.exp(-np.abs(input0.astype(np.float64)))
    p = np.where(input0 >= 0, 1, power) / (1 + power)
    input_gradient[...] = (p - labels.reshape(input0.shape)) / _normaliser(normalisation, state, labels, 0)
    input_gradient[_examples(state) :] = 0


@computes(LabelAccuracy)
def accuracy(
    *,
    input0: Floats,
    labels: NDArray[np.int32],
    state: Array,
    output: Floats,
    top_k: int,
    ignored_label: int | None,
) -> None:
    """The fraction of counted labels with fewer than `top_k` classes ranked before them.

    A class ranks before the label if its value is larger, or equal and its index smaller. NaN ranks before every
    number, and a label whose own value is NaN is never correct: broken weights must not look perfect.
    """
    values = _rows(input0)
    rows, classes = _counted(values, labels, state, ignored_label)
    values = values[rows]
    of_label = values[np.arange(len(rows)), classes][:, np.newaxis]
    earlier = np.arange(values.shape[1]) < classes[:, np.newaxis]
    before = ~(values <= of_label) | ((values == of_label) & earlier)
    correct = before.sum(axis=1) < np.where(np.isnan(of_label[:, 0]), 0, top_k)
    output[0] = correct.sum() / max(len(rows), 1)


def _examples(state: Array) -> int:
    return int(state[State.EXAMPLES])


def _rows(p: Floats) -> Floats:
    """One row of class values for every label: p is (N, classes, …), the labels (N, …)."""
    return np.moveaxis(p, 1, -1).reshape(-1, p.shape[1])


def _counted(
    p: Floats, labels: NDArray[np.int32], state: Array, ignored_label: int | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rows that count, and their classes."""
    classes = labels[: _examples(state)].reshape(-1)
    rows = np.arange(len(classes))
    if ignored_label is not None:
        rows = rows[classes != ignored_label]
        classes = classes[rows]
    wrong = classes[(classes < 0) | (classes >= p.shape[1])]
    if len(wrong):
        raise ValueError(f"expected labels from 0 to {p.shape[1] - 1}. Received: {wrong[0]}")
    return rows, classes


def _targets(targets: Targets, labels: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """(labels, classes): the target of each class for each label."""
    weights = targets.weights(classes)
    made: NDArray[np.float64] = np.tile(targets.smoothing / classes * weights, (len(labels), 1))
    made[np.arange(len(labels)), labels] += (1 - targets.smoothing) * weights[labels]
    return made


def _total(losses: Floats, labels: NDArray[Any], targets: Targets | None) -> float:
    """Σ target · loss. losses: (labels, classes). A target of 0 omits an infinite loss."""
    if targets is None:
        return float(losses[np.arange(len(labels)), labels].sum())
    wanted = _targets(targets, labels, losses.shape[1])
    return float(np.multiply(losses, wanted, out=np.zeros_like(wanted), where=wanted != 0).sum())


def _weight(labels: NDArray[Any], targets: Targets | None, classes: int) -> float:
    """The sum of the labels' class weights; their number without targets."""
    return len(labels) if targets is None else float(targets.weights(classes)[labels].sum())


def _normaliser(normalisation: str, state: Array, labels: NDArray[np.int32], counted: float) -> float:
    """The number of examples ("batch"), of their labels ("full"), the weight of labels not ignored ("valid"), or 1; 1
    if it is 0."""
    examples = _examples(state)
    full = examples * (labels.size // max(len(labels), 1))
    return {"batch": examples, "full": full, "valid": counted, "none": 1}[normalisation] or 1
