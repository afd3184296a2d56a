"""The cross-entropy of independent probabilities."""

from __future__ import annotations

from crossbow.conf import check_choice, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SigmoidLossBackward, SigmoidLossForward
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.ops.loss import ValueLoss
from crossbow.types import Array, LabelRange, Shape


@configuration
class SigmoidLoss(ValueLoss):
    """Cross-entropy of independent probabilities p = 1 / (1 + exp(−x)), given as logits x, with labels t in [0, 1]:
    Σ (−t log p − (1 − t) log(1 − p)) / normaliser, over the real examples of a padded batch.

    x: (N, …); labels: floating point, of the same shape, or (N,) if x has one value per example; output: (1,).

    It is computed as max(x, 0) − t · x + log(1 + exp(−|x|)), which is accurate also for large |x|.

    A graph may have several losses, of which all but one are `auxiliary`; see `SoftMaxLoss`.

    Use it if several labels of an example may be true, and for a classification into two classes with one output. The
    network ends without a sigmoid, so a prediction is a logit: if it is above 0, the label is more probable than not.

    Source: `torch.nn.BCEWithLogitsLoss`; Caffe's SigmoidCrossEntropyLoss is this with normalisation="batch".

    See also: `SoftMaxLoss`.
    """

    normalisation: str = "full"
    """One of "full", the mean over all labels, "batch", the sum over an example's labels and the mean over examples,
    and "none", the sum."""

    weight: float = 1.0
    auxiliary: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "normalisation", ("full", "batch", "none"))

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        (x,) = inputs
        if not self.are_values(labels, x) or labels.minimum < 0 or labels.maximum > 1:
            raise ValueError(f"expected floating-point labels of shape {x}, from 0 to 1. Received: {labels}")

    def counts(self, labels: Array) -> float:
        return float({"full": labels.size, "batch": len(labels), "none": 1}[self.normalisation])

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        assert site.labels is not None
        return (site.library.prepare(SigmoidLossForward(site.inputs[0], site.labels, self.normalisation)),)

    def gradient(self, input: int = 0) -> Gradient:
        return SigmoidLossGradient(input=input)


@configuration
class SigmoidLossGradient(Gradient):
    """Gradient of a `SigmoidLoss`: (p − t) / normaliser; 0 for padding."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, SigmoidLoss)
        assert site.labels is not None
        (x,) = site.inputs
        return (site.library.prepare(SigmoidLossBackward(x, site.labels, x, peer.normalisation)),)
