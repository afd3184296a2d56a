"""Losses and measures, over the first state[EXAMPLES] examples of a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments, Value
from crossbow.kernels.compiled import EXAMPLES, float32_at, inlined, int32_at, int64_at, native_pass, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.native import BAD_LABEL
from crossbow.kernels.requests import (
    EuclideanLossBackward,
    EuclideanLossForward,
    LabelAccuracy,
    SigmoidLossBackward,
    SigmoidLossForward,
    SoftmaxLossBackward,
    SoftmaxLossForward,
)
from crossbow.kernels.requests.losses import ignored_or_none
from crossbow.types import Layout, Tensor

# Kinds of normalisers
BY_ONE, BY_EXAMPLES, BY_LABELS, BY_VALID = 0, 1, 2, 3
NORMALISERS = {"none": BY_ONE, "batch": BY_EXAMPLES, "full": BY_LABELS, "valid": BY_VALID}
TINY = np.float32(np.finfo(np.float32).tiny)


def _plain(x: Tensor, labels: Tensor, *more: Tensor) -> bool:
    """Whether all tensors are in logical order, and the labels have the passes' type."""
    return labels.dtype == np.float32 and all(tensor.layout is Layout.PLAIN for tensor in (x, labels, *more))


def takes(p: Tensor, labels: Tensor) -> bool:
    """Whether the labels are classes, one for each row of class values."""
    return labels.dtype == np.int32 and labels.elements * p.shape[1] == p.elements


CLASSES = Arguments(classes=int, places=int, next_class=int, next_place=int)
"""Numbers of classes and of labels of an example, and the distances in memory between their values."""


def classes_of(p: Tensor) -> dict[str, Value]:
    """The fields of `CLASSES`."""
    classes, places = p.shape[1], p.elements // (p.shape[0] * p.shape[1])
    next_class, next_place = (1, classes) if p.layout is Layout.CHANNELS_LAST else (places, 1)
    return {"classes": classes, "places": places, "next_class": next_class, "next_place": next_place}


@PASSES.kernel(SoftmaxLossForward, lambda request: takes(request.p, request.labels) and request.targets is None)
def softmax_loss_forward(request: SoftmaxLossForward) -> PreparedKernel:
    values, function = (
        (request.p, cross_entropy) if request.logits is None else (request.logits, cross_entropy_of_logits)
    )
    return prepared_pass(
        request,
        function,
        values=request.reads[0],
        labels="labels",
        state="state",
        loss="output",
        sizes=classes_of(values),
        ignored=ignored_or_none(request.ignored_label),
        normaliser=NORMALISERS[request.normalisation],
    )


@PASSES.kernel(
    SoftmaxLossBackward,
    lambda request: takes(request.p, request.labels) and alike(request.p, request.dx) and request.targets is None,
)
def softmax_loss_backward(request: SoftmaxLossBackward) -> PreparedKernel:
    return prepared_pass(
        request,
        cross_entropy_gradient,
        p="input0",
        labels="labels",
        state="state",
        gradient="input_gradient",
        sizes=classes_of(request.p),
        ignored=ignored_or_none(request.ignored_label),
        normaliser=NORMALISERS[request.normalisation],
        batch=request.p.shape[0],
    )


@PASSES.kernel(EuclideanLossForward, lambda request: _plain(request.x, request.labels))
def euclidean_loss_forward(request: EuclideanLossForward) -> PreparedKernel:
    elements = request.x.elements // request.x.shape[0]
    return prepared_pass(request, squares, x="input0", labels="labels", state="state", loss="output", elements=elements)


@PASSES.kernel(EuclideanLossBackward, lambda request: _plain(request.x, request.labels, request.dx))
def euclidean_loss_backward(request: EuclideanLossBackward) -> PreparedKernel:
    x = request.x
    return prepared_pass(
        request,
        squares_gradient,
        x="input0",
        labels="labels",
        state="state",
        gradient="input_gradient",
        elements=x.elements // x.shape[0],
        batch=x.shape[0],
    )


@PASSES.kernel(SigmoidLossForward, lambda request: _plain(request.x, request.labels))
def sigmoid_loss_forward(request: SigmoidLossForward) -> PreparedKernel:
    return prepared_pass(
        request,
        binary_cross_entropy,
        x="input0",
        labels="labels",
        state="state",
        loss="output",
        elements=request.x.elements // request.x.shape[0],
        normaliser=NORMALISERS[request.normalisation],
    )


@PASSES.kernel(SigmoidLossBackward, lambda request: _plain(request.x, request.labels, request.dx))
def sigmoid_loss_backward(request: SigmoidLossBackward) -> PreparedKernel:
    x = request.x
    return prepared_pass(
        request,
        binary_cross_entropy_gradient,
        x="input0",
        labels="labels",
        state="state",
        gradient="input_gradient",
        elements=x.elements // x.shape[0],
        batch=x.shape[0],
        normaliser=NORMALISERS[request.normalisation],
    )


@PASSES.kernel(LabelAccuracy, lambda request: takes(request.p, request.labels))
def accuracy(request: LabelAccuracy) -> PreparedKernel:
    return prepared_pass(
        request,
        top_fraction,
        p="input0",
        labels="labels",
        state="state",
        fraction="output",
        sizes=classes_of(request.p),
        ignored=ignored_or_none(request.ignored_label),
        top=request.top_k,
    )


@inlined
def normaliser_of(kind: int, examples: int, places: int, valid: int) -> Any:
    """Divisor of a sum of losses."""
    counted = 1
    if kind == BY_EXAMPLES:
        counted = examples
    elif kind == BY_LABELS:
        counted = examples * places
    elif kind == BY_VALID:
        counted = valid
    return max(counted, 1)


CROSS_ENTROPY = Arguments(
    values=Address, labels=Address, state=Address, loss=Address, sizes=CLASSES, ignored=int, normaliser=int
)
"""values: probabilities or logits. ignored: the ignored label. normaliser: kind of the normaliser."""


@native_pass(CROSS_ENTROPY)
def cross_entropy(block: Any) -> int:
    p, labels, examples = float32_at(block.values), int32_at(block.labels), int64_at(block.state)[EXAMPLES]
    classes, places = block.sizes.classes, block.sizes.places
    next_class, next_place = block.sizes.next_class, block.sizes.next_place
    total, valid = 0.0, 0
    for n in range(examples):
        for place in range(places):
            label = np.int64(labels[n * places + place])
            if label == block.ignored:
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL
            probability = p[n * classes * places + place * next_place + label * next_class]
            # not max(): NaN must reach the loss
            total -= math.log(np.float64(TINY if probability < TINY else probability))
            valid += 1
    float32_at(block.loss)[0] = np.float32(total / normaliser_of(block.normaliser, examples, places, valid))
    return 0


@inlined
def log_of_sum(x: Any, classes: int, step: int, largest: float) -> Any:
    """log Σ exp (x − largest)."""
    total = 0.0
    for c in range(classes):
        total += math.exp(np.float64(x[c * step]) - largest)
    return math.log(total)


@native_pass(CROSS_ENTROPY)
def cross_entropy_of_logits(block: Any) -> int:
    labels, examples = int32_at(block.labels), int64_at(block.state)[EXAMPLES]
    classes, places = block.sizes.classes, block.sizes.places
    next_class, next_place = block.sizes.next_class, block.sizes.next_place
    total, valid = 0.0, 0
    for n in range(examples):
        for place in range(places):
            label = np.int64(labels[n * places + place])
            if label == block.ignored:
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL
            x = float32_at(block.values + 4 * (n * classes * places + place * next_place))
            largest = np.float64(x[0])
            for c in range(1, classes):
                largest = np.float64(x[c * next_class]) if x[c * next_class] > largest else largest
            # NaN reaches the loss through the sum.
            total += log_of_sum(x, classes, next_class, largest) + (largest - np.float64(x[label * next_class]))
            valid += 1
    float32_at(block.loss)[0] = np.float32(total / normaliser_of(block.normaliser, examples, places, valid))
    return 0


CROSS_ENTROPY_GRADIENT = Arguments(
    p=Address,
    labels=Address,
    state=Address,
    gradient=Address,
    sizes=CLASSES,
    ignored=int,
    normaliser=int,
    batch=int,
)
"""batch: number of examples, including padding."""


@native_pass(CROSS_ENTROPY_GRADIENT)
def cross_entropy_gradient(block: Any) -> int:
    p, labels, examples = float32_at(block.p), int32_at(block.labels), int64_at(block.state)[EXAMPLES]
    classes, places = block.sizes.classes, block.sizes.places
    next_class, next_place = block.sizes.next_class, block.sizes.next_place
    gradient, valid = float32_at(block.gradient), 0
    for index in range(examples * places):
        if np.int64(labels[index]) != block.ignored:
            valid += 1
    normaliser = np.float32(normaliser_of(block.normaliser, examples, places, valid))
    for n in range(block.batch):
        for place in range(places):
            row = n * classes * places + place * next_place
            label = np.int64(labels[n * places + place])
            if n >= examples or label == block.ignored:
                for c in range(classes):
                    gradient[row + c * next_class] = np.float32(0)
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL
            for c in range(classes):
                index = row + c * next_class
                gradient[index] = (p[index] - np.float32(c == label)) / normaliser
    return 0


@native_pass(Arguments(x=Address, labels=Address, state=Address, loss=Address, elements=int))
def squares(block: Any) -> int:
    """elements: elements of an example."""
    x, labels, examples = float32_at(block.x), float32_at(block.labels), int64_at(block.state)[EXAMPLES]
    total = 0.0
    for index in range(examples * block.elements):
        difference = np.float64(x[index] - labels[index])
        total += difference * difference
    float32_at(block.loss)[0] = np.float32(total / (2 * max(examples, 1)))
    return 0


@native_pass(Arguments(x=Address, labels=Address, state=Address, gradient=Address, elements=int, batch=int))
def squares_gradient(block: Any) -> int:
    """elements: elements of an example. batch: number of examples, including padding."""
    x, labels, examples = float32_at(block.x), float32_at(block.labels), int64_at(block.state)[EXAMPLES]
    gradient, divisor = float32_at(block.gradient), np.float32(max(examples, 1))
    for index in range(examples * block.elements):
        gradient[index] = (x[index] - labels[index]) / divisor
    for index in range(examples * block.elements, block.batch * block.elements):
        gradient[index] = np.float32(0)
    return 0


@native_pass(Arguments(x=Address, labels=Address, state=Address, loss=Address, elements=int, normaliser=int))
def binary_cross_entropy(block: Any) -> int:
    """elements: elements of an example. normaliser: kind of the normaliser."""
    x, labels, examples = float32_at(block.x), float32_at(block.labels), int64_at(block.state)[EXAMPLES]
    total = 0.0
    for index in range(examples * block.elements):
        value = np.float64(x[index])
        # `<`: NaN stays NaN
        total += (0.0 if value < 0 else value) - labels[index] * value + math.log1p(math.exp(-abs(value)))
    float32_at(block.loss)[0] = np.float32(total / normaliser_of(block.normaliser, examples, block.elements, 0))
    return 0


@native_pass(
    Arguments(x=Address, labels=Address, state=Address, gradient=Address, elements=int, batch=int, normaliser=int)
)
def binary_cross_entropy_gradient(block: Any) -> int:
    """elements: elements of an example. batch: number of examples, including padding. normaliser: kind of the
    normaliser."""
    x, labels, examples = float32_at(block.x), float32_at(block.labels), int64_at(block.state)[EXAMPLES]
    gradient, divisor = float32_at(block.gradient), normaliser_of(block.normaliser, examples, block.elements, 0)
    for index in range(examples * block.elements):
        value = np.float64(x[index])
        power = math.exp(-abs(value))
        p = (power if value < 0 else 1.0) / (1.0 + power)
        gradient[index] = np.float32((p - labels[index]) / divisor)
    for index in range(examples * block.elements, block.batch * block.elements):
        gradient[index] = np.float32(0)
    return 0


TOP_FRACTION = Arguments(
    p=Address, labels=Address, state=Address, fraction=Address, sizes=CLASSES, ignored=int, top=int
)


@native_pass(TOP_FRACTION)
def top_fraction(block: Any) -> int:
    """The fraction of labels whose class is among the `top` largest."""
    p, labels, examples = float32_at(block.p), int32_at(block.labels), int64_at(block.state)[EXAMPLES]
    classes, places = block.sizes.classes, block.sizes.places
    next_class, next_place = block.sizes.next_class, block.sizes.next_place
    right, valid = 0, 0
    for n in range(examples):
        for place in range(places):
            label = np.int64(labels[n * places + place])
            if label == block.ignored:
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL
            valid += 1
            row = n * classes * places + place * next_place
            own, before = p[row + label * next_class], 0
            for c in range(classes):
                value = p[row + c * next_class]
                # `not <=`: NaN is larger than every number
                if not value <= own or (value == own and c < label):
                    before += 1
            if before < block.top and own == own:
                right += 1
    float32_at(block.fraction)[0] = np.float32(right / max(valid, 1))
    return 0
