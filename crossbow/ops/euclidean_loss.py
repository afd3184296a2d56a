"""The squared error."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_boolean, check_number, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import EuclideanLossBackward, EuclideanLossForward
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import LabelRange, Shape


@configuration
class EuclideanLoss(Kernel):
    """Squared error: Σ (x − labels)² / (2 · examples), over the real examples of a padded batch.

    x: (N, …); labels: floating point, of the same shape, or (N,) if x has one value per example; output: (1,).

    A graph may have several losses, of which all but one are `auxiliary`; see `SoftMaxLoss`.

    Use it for regression.

    See also: `SigmoidLoss`, `SoftMaxLoss`.
    """

    takes_labels: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True

    weight: float = 1.0
    """Factor of the loss in the sum that training minimises, > 0. It is not part of the output."""
    auxiliary: bool = False
    """Whether the loss is for training only; tests, prediction and export omit it with all that only it needs."""

    def __post_init__(self) -> None:
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
        if labels.classes or not (labels.shape == x or one_value):
            raise ValueError(f"expected floating-point labels of shape {x}. Received: {labels}")

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        assert site.labels is not None
        return (site.library.prepare(EuclideanLossForward(site.inputs[0], site.labels)),)

    def gradient(self, input: int = 0) -> Gradient:
        return EuclideanLossGradient(input=input)


@configuration
class EuclideanLossGradient(Gradient):
    """Gradient of an `EuclideanLoss`: (x − labels) / examples; 0 for padding."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, EuclideanLoss)
        assert site.labels is not None
        (x,) = site.inputs
        if not site.needs_input_gradient:
            return ()
        return (site.library.prepare(EuclideanLossBackward(x, site.labels, x)),)
