"""Losses and measures. They see the first state[EXAMPLES] examples of a batch: the rest is padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import State
from crossbow.kernels.reference.prepare import Floats
from crossbow.types import Array


def softmax_loss_forward(
    *,
    input0: Floats,
    labels: NDArray[np.int32],
    state: Array,
    output: Floats,
    ignored_label: int | None,
    normalisation: str,
) -> None:
    """Σ −log max(p[label], tiny) / normaliser."""
    rows, classes = _counted(input0, labels, state, ignored_label)
    tiny = np.finfo(input0.dtype).tiny  # so that a probability of 0 costs much, not infinitely much
    losses = -np.log(np.maximum(input0[rows, classes], tiny))
    output[0] = losses.sum() / _normaliser(normalisation, _examples(state), len(rows))


def softmax_loss_backward(
    *,
    input0: Floats,
    labels: NDArray[np.int32],
    state: Array,
    input_gradient: Floats,
    ignored_label: int | None,
    normalisation: str,
) -> None:
    """(p − y) / normaliser with respect to the logits; 0 for ignored examples and padding."""
    rows, classes = _counted(input0, labels, state, ignored_label)
    gradient = input0[rows]
    gradient[np.arange(len(rows)), classes] -= 1
    gradient /= _normaliser(normalisation, _examples(state), len(rows))
    input_gradient[...] = 0
    input_gradient[rows] = gradient


def euclidean_loss_forward(*, input0: Floats, labels: Floats, state: Array, output: Floats) -> None:
    """Σ (x − labels)² / (2 · examples)."""
    examples = _examples(state)
    difference = (input0 - labels.reshape(input0.shape))[:examples]
    output[0] = np.square(difference).sum() / (2 * max(examples, 1))


def euclidean_loss_backward(*, input0: Floats, labels: Floats, state: Array, input_gradient: Floats) -> None:
    """(x − labels) / examples; 0 for padding."""
    examples = _examples(state)
    np.subtract(input0, labels.reshape(input0.shape), out=input_gradient)
    input_gradient /= max(examples, 1)
    input_gradient[examples:] = 0


def accuracy(
    *,
    input0: Floats,
    labels: NDArray[np.int32],
    state: Array,
    output: Floats,
    top_k: int,
    ignored_label: int | None,
) -> None:
    """The fraction of counted examples before whose label fewer than `top_k` classes come.

    A class comes before the label if its value is larger, or equal and its index smaller. NaN comes before every
    number, and a label whose own value is NaN is never right: broken weights must not look perfect.
    """
    rows, classes = _counted(input0, labels, state, ignored_label)
    values = input0[rows]
    of_label = values[np.arange(len(rows)), classes][:, np.newaxis]
    earlier = np.arange(values.shape[1]) < classes[:, np.newaxis]
    before = ~(values <= of_label) | ((values == of_label) & earlier)
    correct = before.sum(axis=1) < np.where(np.isnan(of_label[:, 0]), 0, top_k)
    output[0] = correct.sum() / max(len(rows), 1)


def _examples(state: Array) -> int:
    return int(state[State.EXAMPLES])


def _counted(
    p: Floats, labels: NDArray[np.int32], state: Array, ignored_label: int | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The examples that count, and their classes."""
    rows = np.arange(_examples(state))
    classes = labels[: len(rows)]
    if ignored_label is not None:
        rows = rows[classes != ignored_label]
        classes = labels[rows]
    wrong = classes[(classes < 0) | (classes >= p.shape[1])]
    if len(wrong):
        raise ValueError(f"expected labels from 0 to {p.shape[1] - 1}. Received: {wrong[0]}")
    return rows, classes


def _normaliser(normalisation: str, examples: int, counted: int) -> int:
    """batch, full: the examples; valid: those not ignored; none: 1. At least 1."""
    return max(1, {"batch": examples, "full": examples, "valid": counted, "none": 1}[normalisation])
