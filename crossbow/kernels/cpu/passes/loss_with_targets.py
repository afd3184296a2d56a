"""Cross-entropy with label smoothing and class weights, over the first state[EXAMPLES] examples of a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments, Value
from crossbow.kernels.compiled import (
    EXAMPLES,
    float32_at,
    float64_at,
    inlined,
    int32_at,
    int64_at,
    native_pass,
    prepared_pass,
)
from crossbow.kernels.cpu.passes.loss import (
    BY_VALID,
    CLASSES,
    NORMALISERS,
    TINY,
    classes_of,
    log_of_sum,
    normaliser_of,
    takes,
)
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.native import BAD_LABEL
from crossbow.kernels.requests import SoftmaxLossBackward, SoftmaxLossForward
from crossbow.kernels.requests.losses import ignored_or_none

TARGETS = Arguments(classes=CLASSES, weights=Address, sum_of_weights=float, smoothing=float)
"""weights: float64, one for each class."""


def _targets(request: SoftmaxLossForward | SoftmaxLossBackward) -> dict[str, Value]:
    """The fields of `TARGETS`."""
    assert request.targets is not None
    values = request.p if isinstance(request, SoftmaxLossBackward) or request.logits is None else request.logits
    weights = request.targets.weights(values.shape[1])
    total, smoothing = float(weights.sum()), float(request.targets.smoothing)
    return {"classes": classes_of(values), "weights": weights, "sum_of_weights": total, "smoothing": smoothing}


@PASSES.kernel(SoftmaxLossForward, lambda request: takes(request.p, request.labels) and request.targets is not None)
def softmax_loss_forward(request: SoftmaxLossForward) -> PreparedKernel:
    return prepared_pass(
        request,
        cross_entropy_with_targets,
        values=request.reads[0],
        labels="labels",
        state="state",
        loss="output",
        targets=_targets(request),
        ignored=ignored_or_none(request.ignored_label),
        normaliser=NORMALISERS[request.normalisation],
        of_logits=int(request.logits is not None),
    )


@PASSES.kernel(
    SoftmaxLossBackward,
    lambda request: takes(request.p, request.labels) and alike(request.p, request.dx) and request.targets is not None,
)
def softmax_loss_backward(request: SoftmaxLossBackward) -> PreparedKernel:
    return prepared_pass(
        request,
        cross_entropy_gradient_with_targets,
        p="input0",
        labels="labels",
        state="state",
        gradient="input_gradient",
        targets=_targets(request),
        ignored=ignored_or_none(request.ignored_label),
        normaliser=NORMALISERS[request.normalisation],
        batch=request.p.shape[0],
    )


@inlined
def _divisor(kind: int, examples: int, places: int, weight: float) -> float:
    """The divisor of a sum of losses. weight: the sum of the class weights of the labels that count."""
    if kind == BY_VALID:
        return weight if weight > 0 else 1.0
    return float(normaliser_of(kind, examples, places, 0))


@inlined
def _loss_of_probabilities(values: int, weights: int, classes: int, step: int, label: int, smoothing: float) -> float:
    """Σ t[c] · −log max(p[c], tiny)."""
    p, w, total = float32_at(values), float64_at(weights), 0.0
    for c in range(classes):
        target = w[c] * (smoothing / classes + (1 - smoothing if c == label else 0.0))
        if target != 0:
            value = p[c * step]
            total -= target * math.log(np.float64(TINY if value < TINY else value))
    return total


@inlined
def _loss_of_logits(values: int, weights: int, classes: int, step: int, label: int, smoothing: float) -> float:
    """Σ t[c] · (log Σ exp x − x[c])."""
    x, w, total = float32_at(values), float64_at(weights), 0.0
    largest = np.float64(x[0])
    for c in range(1, classes):
        largest = np.float64(x[c * step]) if x[c * step] > largest else largest
    logarithm = log_of_sum(x, classes, step, largest)
    for c in range(classes):
        target = w[c] * (smoothing / classes + (1 - smoothing if c == label else 0.0))
        if target != 0:
            total += target * (logarithm + (largest - np.float64(x[c * step])))
    return total


@native_pass(
    Arguments(
        values=Address,
        labels=Address,
        state=Address,
        loss=Address,
        targets=TARGETS,
        ignored=int,
        normaliser=int,
        of_logits=int,
    )
)
def cross_entropy_with_targets(block: Any) -> int:
    """values: probabilities, or logits."""
    labels, examples = int32_at(block.labels), int64_at(block.state)[EXAMPLES]
    targets, sizes = block.targets, block.targets.classes
    classes, places, step = sizes.classes, sizes.places, sizes.next_class
    weights, total, weight = float64_at(targets.weights), 0.0, 0.0
    for n in range(examples):
        for place in range(places):
            label = np.int64(labels[n * places + place])
            if label == block.ignored:
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL
            row = block.values + 4 * (n * classes * places + place * sizes.next_place)
            if block.of_logits != 0:
                total += _loss_of_logits(row, targets.weights, classes, step, label, targets.smoothing)
            else:
                total += _loss_of_probabilities(row, targets.weights, classes, step, label, targets.smoothing)
            weight += weights[label]
    float32_at(block.loss)[0] = np.float32(total / _divisor(block.normaliser, examples, places, weight))
    return 0


@native_pass(
    Arguments(
        p=Address,
        labels=Address,
        state=Address,
        gradient=Address,
        targets=TARGETS,
        ignored=int,
        normaliser=int,
        batch=int,
    )
)
def cross_entropy_gradient_with_targets(block: Any) -> int:
    """batch: number of examples, including padding."""
    p, labels, examples = float32_at(block.p), int32_at(block.labels), int64_at(block.state)[EXAMPLES]
    sizes, smoothing, weights = block.targets.classes, block.targets.smoothing, float64_at(block.targets.weights)
    classes, places, step = sizes.classes, sizes.places, sizes.next_class
    gradient, weight = float32_at(block.gradient), 0.0
    for index in range(examples * places):
        label = np.int64(labels[index])
        if label != block.ignored:
            if label < 0 or label >= classes:
                return BAD_LABEL
            weight += weights[label]
    divisor = _divisor(block.normaliser, examples, places, weight)
    for n in range(block.batch):
        for place in range(places):
            row = n * classes * places + place * sizes.next_place
            label = np.int64(labels[n * places + place])
            if n >= examples or label == block.ignored:
                for c in range(classes):
                    gradient[row + c * step] = np.float32(0)
                continue
            whole = (1 - smoothing) * weights[label] + smoothing / classes * block.targets.sum_of_weights
            for c in range(classes):
                target = weights[c] * (smoothing / classes + (1 - smoothing if c == label else 0.0))
                gradient[row + c * step] = np.float32((np.float64(p[row + c * step]) * whole - target) / divisor)
    return 0
