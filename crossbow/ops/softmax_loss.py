"""Cross-entropy loss of a SoftMax."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from crossbow.conf import check_choice, check_number, configuration, is_integer, is_number, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SoftmaxLossBackward, SoftmaxLossForward, Targets
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.ops.loss import LabelLoss
from crossbow.ops.softmax import SoftMax
from crossbow.types import Array, LabelRange, Shape

NORMALISATIONS = ("batch", "full", "valid", "none")


@configuration
class SoftMaxLoss(LabelLoss):
    """Cross-entropy: Σ −log p[n, label, …] / normaliser, with the sum over all labels.

    In a dataflow, −log p = log Σ exp x − x[label] is computed from the logits x, the input of the preceding SoftMax, so
    the loss is accurate however small p is. If only probabilities are known (`run_operator`), a p of 0 counts as the
    smallest normal number: −log p is at most 87.3 in float32.

    p: (N, classes), the output of a SoftMax over axis 1; labels: (N,) int32; output: (1,). For examples with several
    labels, such as a class for every pixel, p: (N, classes, d1, d2, …) and labels: (N, d1, d2, …). Only the real
    examples of a padded batch count. `normalisation`: "batch" divides by the number of examples, "full" by the number
    of labels, "valid" by the number of labels that are not `ignored_label` (at least 1), "none" by 1. An ignored label
    adds nothing to the loss.

    With `label_smoothing` ε and `class_weights` w, the loss of a label y is Σ_c t[c] · −log p[c], with the target
    t[c] = w[c] · ((1 − ε) · [c = y] + ε / classes) of class c. "valid" then divides by the sum of the labels' weights
    w[y], so that SoftMaxLoss(normalisation="valid") is PyTorch's CrossEntropyLoss. The other normalisations divide by
    the number of examples or labels regardless of their weights, as Keras does with class weights: the divisor does not
    depend on the classes in a batch. Export to ONNX omits the loss and its weights.

    A graph may have several losses: one that is not `auxiliary`, whose input is the prediction, and auxiliary ones,
    each with the operators that only it needs. Training minimises the sum of all losses, each times its `weight`.

    Use it for classification, after a `SoftMax`.

    Ports SoftMaxLoss.java and softmaxloss.cu. Fixed from the original: the normalisation works on GPUs.

    See also: `SoftMax`, `Accuracy`, `EuclideanLoss`, `SigmoidLoss`.
    """

    number_of_inputs: ClassVar[int | None] = 1
    gradient_past: ClassVar[type[Kernel] | None] = SoftMax

    ignored_label: int | None = None
    """Label of examples that do not count; None counts all."""
    normalisation: str = "batch"
    """One of "batch", "full", "valid" and "none"."""
    label_smoothing: float = 0.0
    """ε, the fraction of each label that is distributed evenly over all classes, ≥ 0 and < 1."""
    class_weights: tuple[float, ...] | None = None
    """A weight ≥ 0 for each class, not all 0; None gives all classes the same weight."""

    weight: float = 1.0
    auxiliary: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ignored_label(self, self.ignored_label)
        check_choice(self, "normalisation", NORMALISATIONS)
        check_number(self, "label_smoothing", minimum=0, maximum=1, below=True)
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", self._checked_weights(self.class_weights))

    def _checked_weights(self, given: object) -> tuple[float, ...]:
        weights = given.tolist() if isinstance(given, np.ndarray) else given
        good = isinstance(weights, list | tuple) and all(is_number(each) and each >= 0 for each in weights)
        if not good or not any(weights):  # type: ignore[arg-type]
            allowed = "a weight ≥ 0 for each class, in order and not all 0, or None"
            raise refuse(self, "class_weights", given, allowed)
        return tuple(map(float, weights))  # type: ignore[arg-type]

    @property
    def targets(self) -> Targets | None:
        """Label smoothing and class weights, if there are any."""
        if not self.label_smoothing and self.class_weights is None:
            return None
        return Targets(float(self.label_smoothing), self.class_weights)

    def output_shape(self, *inputs: Shape) -> Shape:
        check_probabilities(inputs[0])
        if self.class_weights is not None and len(self.class_weights) != inputs[0][1]:
            number = len(self.class_weights)
            raise ValueError(f"expected as many classes as class_weights, {number}. Received: {inputs[0][1]}")
        return (1,)

    def check_producer(self, producer: Kernel, *inputs: Shape) -> None:
        if isinstance(producer, SoftMax) and producer.first_axis(inputs[0]) != 1:
            raise ValueError(f"expected probabilities of a SoftMax over axis 1. Received: axis={producer.axis}")

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        check_classes(labels, inputs[0], self.ignored_label)

    def counts(self, labels: Array) -> float:
        if self.normalisation == "none":
            return 1.0  # the sum over a set is the sum over its batches
        if self.normalisation == "batch":
            return float(len(labels))
        if self.normalisation == "valid" and self.class_weights is not None:
            return float(np.array(self.class_weights)[labels[labels != self.ignored_label]].sum())
        return float(counted(labels, self.ignored_label if self.normalisation == "valid" else None))

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        assert site.labels is not None
        (p,) = site.inputs
        settings = (self.ignored_label, self.normalisation, site.logits, self.targets)
        return (site.library.prepare(SoftmaxLossForward(p, site.labels, *settings)),)

    def gradient(self, input: int = 0) -> Gradient:
        return SoftMaxLossGradient(input=input)


@configuration
class SoftMaxLossGradient(Gradient):
    """Gradient of a `SoftMaxLoss` with respect to the logits, the input of the SoftMax: (p − y) / normaliser.

    y is 1 at the label and 0 elsewhere. With label smoothing or class weights, the gradient is
    (p · Σ t[c] − t) / normaliser. It is 0 for ignored labels and for padding.
    """

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, SoftMaxLoss)
        assert site.labels is not None
        (p,) = site.inputs
        settings = (peer.ignored_label, peer.normalisation, peer.targets)
        return (site.library.prepare(SoftmaxLossBackward(p, site.labels, p, *settings)),)


def counted(labels: Array, ignored_label: int | None) -> int:
    """Number of labels that are not ignored."""
    return labels.size if ignored_label is None else int(np.count_nonzero(labels != ignored_label))


def check_ignored_label(owner: object, value: object) -> None:
    """Raises ConfigurationError if `owner`'s ignored_label is neither an integer nor None."""
    if value is not None and not is_integer(value):
        raise refuse(owner, "ignored_label", value, "an integer or None")


def check_probabilities(p: Shape) -> None:
    """Raise ValueError unless the shape is (N, classes) or (N, classes, …)."""
    if len(p) < 2 or p[1] == 0:
        raise ValueError(f"expected an input of shape (N, classes) or (N, classes, …). Received: {p}")


def check_classes(labels: LabelRange, p: Shape, ignored_label: int | None) -> None:
    """Raises ValueError unless all labels are classes from 0 to the number of classes − 1, or the ignored label."""
    shape = p[:1] + p[2:]
    allowed = f"class labels of shape {shape}, from 0 to {p[1] - 1}"
    if ignored_label is not None:
        allowed += f" or {ignored_label} (ignored)"
    lowest, highest = (0, p[1] - 1)
    if ignored_label is not None:
        lowest, highest = min(lowest, ignored_label), max(highest, ignored_label)
    one_label = labels.shape == p[:1] and all(size == 1 for size in p[2:])
    fits = labels.classes and (labels.shape == shape or one_label)
    if not fits or labels.minimum < lowest or labels.maximum > highest:
        raise ValueError(f"expected {allowed}. Received: {labels}")
