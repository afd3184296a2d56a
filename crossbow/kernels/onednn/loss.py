"""Losses and measures, over the first state[EXAMPLES] examples of a batch."""

from __future__ import annotations

import math

import numpy as np

from crossbow.kernels.compiled import EXAMPLES, float32_at, int32_at, int64_at, native, prepared_pass
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.native import BAD_LABEL
from crossbow.types import Tensor

READS = ("input0", "labels", "state")
NOTHING_IGNORED = -(2**40)
"""Stands for "no label is ignored": no 32-bit label is equal to it."""

# What the normaliser counts.
_ONE, _ALL, _VALID = 0, 1, 2
_NORMALISERS = {"none": _ONE, "batch": _ALL, "full": _ALL, "valid": _VALID}
_TINY = np.float32(np.finfo(np.float32).tiny)


def _ignored(label: int | None) -> int:
    return NOTHING_IGNORED if label is None else label


def softmax_loss_forward(p: Tensor, ignored_label: int | None, normalisation: str) -> PreparedKernel:
    """input0 (probabilities), labels, state → output (1,)."""
    numbers = (p.shape[1], _ignored(ignored_label), _NORMALISERS[normalisation])
    return prepared_pass("softmax_loss_forward", cross_entropy, READS, ("output",), *numbers)


def softmax_loss_backward(p: Tensor, ignored_label: int | None, normalisation: str) -> PreparedKernel:
    """input0, labels, state → input_gradient: (p − y) / normaliser, with respect to the logits."""
    numbers = (p.shape[1], _ignored(ignored_label), _NORMALISERS[normalisation], p.shape[0])
    return prepared_pass("softmax_loss_backward", cross_entropy_gradient, READS, ("input_gradient",), *numbers)


def euclidean_loss_forward(x: Tensor) -> PreparedKernel:
    """input0, labels, state → output (1,): Σ (x − labels)² / (2 · examples)."""
    return prepared_pass("euclidean_loss_forward", squares, READS, ("output",), x.elements // x.shape[0])


def euclidean_loss_backward(x: Tensor) -> PreparedKernel:
    """input0, labels, state → input_gradient: (x − labels) / examples."""
    numbers = (x.elements // x.shape[0], x.shape[0])
    return prepared_pass("euclidean_loss_backward", squares_gradient, READS, ("input_gradient",), *numbers)


def accuracy(p: Tensor, top_k: int, ignored_label: int | None) -> PreparedKernel:
    """input0, labels, state → output (1,): fraction of examples whose label is among the top_k largest."""
    return prepared_pass("accuracy", top_fraction, READS, ("output",), p.shape[1], _ignored(ignored_label), top_k)


@native
def cross_entropy(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: p, labels, state, loss, classes, ignored label, what the normaliser counts."""
    block = int64_at(arguments)
    p, labels, examples = float32_at(block[0]), int32_at(block[1]), int64_at(block[2])[EXAMPLES]
    classes, total, valid = block[4], 0.0, 0
    for n in range(examples):
        label = np.int64(labels[n])
        if label == block[5]:
            continue
        if label < 0 or label >= classes:
            return BAD_LABEL
        probability = p[n * classes + label]
        # not max(): a probability that is not a number must reach the loss
        total -= math.log(np.float64(_TINY if probability < _TINY else probability))
        valid += 1
    counted = examples if block[6] == _ALL else (valid if block[6] == _VALID else 1)
    float32_at(block[3])[0] = np.float32(total / max(counted, 1))
    return 0


@native
def cross_entropy_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: p, labels, state, gradient, classes, ignored label, what the normaliser counts, rows."""
    block = int64_at(arguments)
    p, labels, examples = float32_at(block[0]), int32_at(block[1]), int64_at(block[2])[EXAMPLES]
    gradient, classes, valid = float32_at(block[3]), block[4], 0
    for n in range(examples):
        if np.int64(labels[n]) != block[5]:
            valid += 1
    counted = examples if block[6] == _ALL else (valid if block[6] == _VALID else 1)
    normaliser = np.float32(max(counted, 1))
    for n in range(block[7]):
        row = n * classes
        if n >= examples or np.int64(labels[n]) == block[5]:
            for c in range(classes):
                gradient[row + c] = np.float32(0)
            continue
        label = np.int64(labels[n])
        if label < 0 or label >= classes:
            return BAD_LABEL
        for c in range(classes):
            gradient[row + c] = (p[row + c] - np.float32(c == label)) / normaliser
    return 0


@native
def squares(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, labels, state, loss, elements of an example."""
    block = int64_at(arguments)
    x, labels, examples = float32_at(block[0]), float32_at(block[1]), int64_at(block[2])[EXAMPLES]
    total = 0.0
    for index in range(examples * block[4]):
        difference = np.float64(x[index] - labels[index])
        total += difference * difference
    float32_at(block[3])[0] = np.float32(total / (2 * max(examples, 1)))
    return 0


@native
def squares_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, labels, state, gradient, elements of an example, rows."""
    block = int64_at(arguments)
    x, labels, examples = float32_at(block[0]), float32_at(block[1]), int64_at(block[2])[EXAMPLES]
    gradient, divisor = float32_at(block[3]), np.float32(max(examples, 1))
    for index in range(examples * block[4]):
        gradient[index] = (x[index] - labels[index]) / divisor
    for index in range(examples * block[4], block[5] * block[4]):
        gradient[index] = np.float32(0)
    return 0


@native
def top_fraction(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: p, labels, state, fraction, classes, ignored label, top k."""
    block = int64_at(arguments)
    p, labels, examples = float32_at(block[0]), int32_at(block[1]), int64_at(block[2])[EXAMPLES]
    classes, right, valid = block[4], 0, 0
    for n in range(examples):
        label = np.int64(labels[n])
        if label == block[5]:
            continue
        if label < 0 or label >= classes:
            return BAD_LABEL
        valid += 1
        row = n * classes
        own, before = p[row + label], 0
        for c in range(classes):
            # `not <=`, because what is not a number comes before every number
            if not p[row + c] <= own or (p[row + c] == own and c < label):
                before += 1
        if before < block[6] and own == own:
            right += 1
    float32_at(block[3])[0] = np.float32(right / max(valid, 1))
    return 0
