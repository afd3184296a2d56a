"""The cross-entropy loss of probabilities that a SoftMax made."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from crossbow.conf import check_choice, configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.ops.softmax import SoftMax
from crossbow.types import Array, LabelRange, Shape

NORMALISATIONS = ("batch", "full", "valid", "none")


@configuration
class SoftMaxLoss(Kernel):
    """Cross-entropy: Σ_n −log p[n, label n] / normaliser.

    p: (N, classes), the output of a SoftMax; labels: (N,) int32; the loss: (1,). Only the real examples of a padded
    batch count. `normalisation`: "batch" and "full" divide by the number of examples, "valid" by the number of those
    whose label is not `ignored_label` (at least 1), "none" by 1. An ignored example costs nothing.

    Ports SoftMaxLoss.java and softmaxloss.cu. Fixed from the original: the GPU obeys the normalisation.
    """

    number_of_inputs: ClassVar[int | None] = 1
    takes_labels: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True
    gradient_past: ClassVar[type[Kernel] | None] = SoftMax

    ignored_label: int | None = None
    normalisation: str = "batch"

    def __post_init__(self) -> None:
        check_ignored_label(self, self.ignored_label)
        check_choice(self, "normalisation", NORMALISATIONS)

    def output_shape(self, *inputs: Shape) -> Shape:
        check_probabilities(inputs[0])
        return (1,)

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        check_classes(labels, inputs[0], self.ignored_label)

    def counts(self, labels: Array) -> float:
        if self.normalisation == "none":
            return 1.0  # the sum over a set is the sum over its batches
        return float(counted(labels, self.ignored_label if self.normalisation == "valid" else None))

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        assert site.labels is not None
        (p,) = site.inputs
        return (site.library.softmax_loss_forward(p, site.labels, self.ignored_label, self.normalisation),)

    def gradient(self, input: int = 0) -> Gradient:
        return SoftMaxLossGradient(input=input)


@configuration
class SoftMaxLossGradient(Gradient):
    """Gradient of a `SoftMaxLoss` with respect to the logits, the input of the SoftMax: (p − y) / normaliser.

    y is 1 at the label and 0 elsewhere; rows of ignored examples and of padding are 0.
    """

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, SoftMaxLoss)
        assert site.labels is not None
        (p,) = site.inputs
        if not site.needs_input_gradient:
            return ()
        return (site.library.softmax_loss_backward(p, site.labels, p, peer.ignored_label, peer.normalisation),)


def counted(labels: Array, ignored_label: int | None) -> int:
    """How many of the labels are not ignored."""
    return len(labels) if ignored_label is None else int(np.count_nonzero(labels != ignored_label))


def check_ignored_label(owner: object, value: object) -> None:
    """Raise ConfigurationError where `owner`'s ignored_label is neither an integer nor None."""
    if value is not None and not is_integer(value):
        raise refuse(owner, "ignored_label", value, "an integer or None")


def check_probabilities(p: Shape) -> None:
    """Raise ValueError where the shape is not one row of class values per example."""
    if len(p) != 2:
        raise ValueError(f"expected an input of shape (N, classes). Received: {p}")


def check_classes(labels: LabelRange, p: Shape, ignored_label: int | None) -> None:
    """Raise ValueError where the labels are not classes from 0 to the number of classes − 1, the ignored one aside."""
    allowed = f"class labels of shape {p[:1]}, from 0 to {p[1] - 1}"
    if ignored_label is not None:
        allowed += f" or {ignored_label} (ignored)"
    lowest, highest = (0, p[1] - 1)
    if ignored_label is not None:
        lowest, highest = min(lowest, ignored_label), max(highest, ignored_label)
    if not labels.classes or labels.shape != p[:1] or labels.minimum < lowest or labels.maximum > highest:
        raise ValueError(f"expected {allowed}. Received: {labels}")
