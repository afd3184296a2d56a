"""Classification accuracy."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_integer, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LabelAccuracy
from crossbow.ops.kernel import Kernel, Site
from crossbow.ops.softmax_loss import check_classes, check_ignored_label, check_probabilities, counted
from crossbow.types import Array, LabelRange, Shape


@configuration
class Accuracy(Kernel):
    """Fraction, in [0, 1], of the labels that are among the `top_k` classes with the largest values.

    p: (N, classes), probabilities or scores; labels: (N,) int32; output: (1,). For examples with several labels,
    p: (N, classes, d1, d2, …) and labels: (N, d1, d2, …). Of equal values, the one with the smaller index ranks first.
    Ignored labels and the padding of a batch do not count. There is no gradient.

    Use it as a metric for classification: connect it to the SoftMax, next to the loss.

    Ports Accuracy.java and accuracy.cu. Fixed from the original: top_k and the ignored label work, and scores may be
    negative.

    See also: `SoftMaxLoss`, `Classify`.
    """

    takes_labels: ClassVar[bool] = True
    is_measure: ClassVar[bool] = True

    top_k: int = 1
    """Number of top-ranked classes that may contain the label, ≥ 1."""
    ignored_label: int | None = None
    """Label of examples that do not count; None counts all."""

    def __post_init__(self) -> None:
        check_integer(self, "top_k", 1)
        check_ignored_label(self, self.ignored_label)

    def output_shape(self, *inputs: Shape) -> Shape:
        (p,) = inputs
        check_probabilities(p)
        if self.top_k > p[1]:
            raise ValueError(f"expected at least top_k={self.top_k} classes. Received: {p[1]}")
        return (1,)

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        check_classes(labels, inputs[0], self.ignored_label)

    def counts(self, labels: Array) -> float:
        return float(counted(labels, self.ignored_label))

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        assert site.labels is not None
        return (site.library.prepare(LabelAccuracy(site.inputs[0], site.labels, self.top_k, self.ignored_label)),)
