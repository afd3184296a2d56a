"""The cross-entropy of independent probabilities."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_boolean, check_choice, check_number, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SigmoidLossBackward, SigmoidLossForward
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Array, LabelRange, Shape


@configuration
class SigmoidLoss(Kernel):
    """Cross-entropy of logits x, of which each is of its own probability p = 1 / (1 + exp(−x)), with labels t in
    [0, 1]: Σ (−t log p − (1 − t) log(1 − p)) / normaliser, over the real examples of a padded batch.

    x: (N, …); labels: floating point, of the same shape, or (N,) if x has one value per example; output: (1,).

    It is computed as max(x, 0) − t · x + log(1 + exp(−|x|)), which is exact for large |x|, too.

    A graph may have several losses, of which all but one are `auxiliary`; see `SoftMaxLoss`.

    Use it for labels of which several may be true, and for a classification into two classes with one output. The
    network ends without a sigmoid, so a prediction is a logit: above 0, the label is more probable than not.

    Source: `torch.nn.BCEWithLogitsLoss`; Caffe's SigmoidCrossEntropyLoss is this with normalisation="batch".

    See also: `SoftMaxLoss`.
    """

    takes_labels: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True

    normalisation: str = "full"
    """One of "full", the mean over all labels, "batch", the sum over an example's labels and the mean over examples,
    and "none", the sum."""
    weight: float = 1.0
    """Factor of the loss in the sum that training minimises, > 0. It is not part of the output."""
    auxiliary: bool = False
    """Whether the loss is for training only; tests, prediction and export omit it with all that only it needs."""

    def __post_init__(self) -> None:
        check_choice(self, "normalisation", ("full", "batch", "none"))
        check_number(self, "weight", minimum=0, above=True)
        check_boolean(self, "auxiliary")

    @property
    def loss_weight(self) -> float:
        return float(self.weight)

    @property
    def is_auxiliary(self) -> bool:
        return bool(self.auxiliary)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if not x:
            raise ValueError(f"expected an input of shape (N, …). Received: {x}")
        return (1,)

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        (x,) = inputs
        one_value = labels.shape == x[:1] and all(size == 1 for size in x[1:])
        fits = not labels.classes and (labels.shape == x or one_value)
        if not fits or labels.minimum < 0 or labels.maximum > 1:
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
        if not site.needs_input_gradient:
            return ()
        return (site.library.prepare(SigmoidLossBackward(x, site.labels, x, peer.normalisation)),)
