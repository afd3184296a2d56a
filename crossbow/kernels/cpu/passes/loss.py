"""Losses and measures, over the first state[EXAMPLES] examples of a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.compiled import EXAMPLES, float32_at, inlined, int32_at, int64_at, native, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.native import BAD_LABEL
from crossbow.kernels.requests import (
    EuclideanLossBackward,
    EuclideanLossForward,
    LabelAccuracy,
    SoftmaxLossBackward,
    SoftmaxLossForward,
)
from crossbow.types import Layout, Tensor

NOTHING_IGNORED = -(2**40)
"""Stands for "no label is ignored": no 32-bit label is equal to it."""

# What the normaliser counts.
_ONE, _EXAMPLES, _ALL, _VALID = 0, 1, 2, 3
_NORMALISERS = {"none": _ONE, "batch": _EXAMPLES, "full": _ALL, "valid": _VALID}
_TINY = np.float32(np.finfo(np.float32).tiny)


def _ignored(label: int | None) -> int:
    return NOTHING_IGNORED if label is None else label


def _plain(x: Tensor, labels: Tensor, *more: Tensor) -> bool:
    """Whether all lie in logical order, and the labels are of the passes' type."""
    return labels.dtype == np.float32 and all(tensor.layout is Layout.PLAIN for tensor in (x, labels, *more))


def _takes(p: Tensor, labels: Tensor) -> bool:
    """Whether the labels are classes, one for each row of class values."""
    return labels.dtype == np.int32 and labels.elements * p.shape[1] == p.elements


def _sizes(p: Tensor) -> tuple[int, int, int, int]:
    """Classes and labels of an example, and the distances in memory from class to class and from label to label."""
    classes, places = p.shape[1], p.elements // (p.shape[0] * p.shape[1])
    if p.layout is Layout.CHANNELS_LAST:
        return classes, places, 1, classes
    return classes, places, places, 1


@PASSES.kernel(SoftmaxLossForward, lambda request: _takes(request.p, request.labels))
def softmax_loss_forward(request: SoftmaxLossForward) -> PreparedKernel:
    values, function = (
        (request.p, cross_entropy) if request.logits is None else (request.logits, cross_entropy_of_logits)
    )
    return prepared_pass(request, function, *_sizes(values), *_counting(request))


@PASSES.kernel(SoftmaxLossBackward, lambda request: _takes(request.p, request.labels) and alike(request.p, request.dx))
def softmax_loss_backward(request: SoftmaxLossBackward) -> PreparedKernel:
    numbers = (*_sizes(request.p), *_counting(request), request.p.shape[0])
    return prepared_pass(request, cross_entropy_gradient, *numbers)


def _counting(request: SoftmaxLossForward | SoftmaxLossBackward) -> tuple[int, int]:
    """The ignored label, and what the normaliser counts."""
    return _ignored(request.ignored_label), _NORMALISERS[request.normalisation]


@PASSES.kernel(EuclideanLossForward, lambda request: _plain(request.x, request.labels))
def euclidean_loss_forward(request: EuclideanLossForward) -> PreparedKernel:
    return prepared_pass(request, squares, request.x.elements // request.x.shape[0])


@PASSES.kernel(EuclideanLossBackward, lambda request: _plain(request.x, request.labels, request.dx))
def euclidean_loss_backward(request: EuclideanLossBackward) -> PreparedKernel:
    x = request.x
    return prepared_pass(request, squares_gradient, x.elements // x.shape[0], x.shape[0])


@PASSES.kernel(LabelAccuracy, lambda request: _takes(request.p, request.labels))
def accuracy(request: LabelAccuracy) -> PreparedKernel:
    return prepared_pass(request, top_fraction, *_sizes(request.p), _ignored(request.ignored_label), request.top_k)


@inlined
def _normaliser(kind: int, examples: int, places: int, valid: int) -> Any:
    """What a sum of losses is divided by."""
    counted = 1
    if kind == _EXAMPLES:
        counted = examples
    elif kind == _ALL:
        counted = examples * places
    elif kind == _VALID:
        counted = valid
    return max(counted, 1)


@native
def cross_entropy(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: p, labels, state, loss, the four sizes, ignored label, what the normaliser counts."""
    block = int64_at(arguments)
    p, labels, examples = float32_at(block[0]), int32_at(block[1]), int64_at(block[2])[EXAMPLES]
    classes, places, next_class, next_place = block[4], block[5], block[6], block[7]
    total, valid = 0.0, 0
    for n in range(examples):
        for place in range(places):
            label = np.int64(labels[n * places + place])
            if label == block[8]:
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL
            probability = p[n * classes * places + place * next_place + label * next_class]
            # not max(): a probability that is not a number must reach the loss
            total -= math.log(np.float64(_TINY if probability < _TINY else probability))
            valid += 1
    float32_at(block[3])[0] = np.float32(total / _normaliser(block[9], examples, places, valid))
    return 0


@inlined
def _log_of_sum(x: Any, classes: int, step: int, largest: float) -> Any:
    """log Σ exp (x − largest)."""
    total = 0.0
    for c in range(classes):
        total += math.exp(np.float64(x[c * step]) - largest)
    return math.log(total)


@native
def cross_entropy_of_logits(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: logits, labels, state, loss, the four sizes, ignored label, what the normaliser counts."""
    block = int64_at(arguments)
    labels, examples = int32_at(block[1]), int64_at(block[2])[EXAMPLES]
    classes, places, next_class, next_place = block[4], block[5], block[6], block[7]
    total, valid = 0.0, 0
    for n in range(examples):
        for place in range(places):
            label = np.int64(labels[n * places + place])
            if label == block[8]:
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL
            x = float32_at(block[0] + 4 * (n * classes * places + place * next_place))
            largest = np.float64(x[0])
            for c in range(1, classes):
                largest = np.float64(x[c * next_class]) if x[c * next_class] > largest else largest
            # What is not a number reaches the loss through the sum.
            total += _log_of_sum(x, classes, next_class, largest) + (largest - np.float64(x[label * next_class]))
            valid += 1
    float32_at(block[3])[0] = np.float32(total / _normaliser(block[9], examples, places, valid))
    return 0


@native
def cross_entropy_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: p, labels, state, gradient, the four sizes, ignored label, what the normaliser counts, examples with
    padding."""
    block = int64_at(arguments)
    p, labels, examples = float32_at(block[0]), int32_at(block[1]), int64_at(block[2])[EXAMPLES]
    classes, places, next_class, next_place = block[4], block[5], block[6], block[7]
    gradient, valid = float32_at(block[3]), 0
    for index in range(examples * places):
        if np.int64(labels[index]) != block[8]:
            valid += 1
    normaliser = np.float32(_normaliser(block[9], examples, places, valid))
    for n in range(block[10]):
        for place in range(places):
            row = n * classes * places + place * next_place
            label = np.int64(labels[n * places + place])
            if n >= examples or label == block[8]:
                for c in range(classes):
                    gradient[row + c * next_class] = np.float32(0)
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL
            for c in range(classes):
                index = row + c * next_class
                gradient[index] = (p[index] - np.float32(c == label)) / normaliser
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
    """Block: p, labels, state, fraction, the four sizes, ignored label, top k."""
    block = int64_at(arguments)
    p, labels, examples = float32_at(block[0]), int32_at(block[1]), int64_at(block[2])[EXAMPLES]
    classes, places, next_class, next_place = block[4], block[5], block[6], block[7]
    right, valid = 0, 0
    for n in range(examples):
        for place in range(places):
            label = np.int64(labels[n * places + place])
            if label == block[8]:
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL
            valid += 1
            row = n * classes * places + place * next_place
            own, before = p[row + label * next_class], 0
            for c in range(classes):
                value = p[row + c * next_class]
                # `not <=`, because what is not a number comes before every number
                if not value <= own or (value == own and c < label):
                    before += 1
            if before < block[9] and own == own:
                right += 1
    float32_at(block[3])[0] = np.float32(right / max(valid, 1))
    return 0
