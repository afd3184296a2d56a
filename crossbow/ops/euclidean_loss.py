"""The squared error."""

from __future__ import annotations

from crossbow.conf import configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import EuclideanLossBackward, EuclideanLossForward
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.ops.loss import ValueLoss
from crossbow.types import LabelRange, Shape


@configuration
class EuclideanLoss(ValueLoss):
    """Squared error: Σ (x − labels)² / (2 · examples), over the real examples of a padded batch.

    x: (N, …); labels: floating point, of the same shape, or (N,) if x has one value per example; output: (1,).

    A graph may have several losses, of which all but one are `auxiliary`; see `SoftMaxLoss`.

    Use it for regression.

    See also: `SigmoidLoss`, `SoftMaxLoss`.
    """

    weight: float = 1.0
    auxiliary: bool = False

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        (x,) = inputs
        if not self.are_values(labels, x):
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
        return (site.library.prepare(EuclideanLossBackward(x, site.labels, x)),)
