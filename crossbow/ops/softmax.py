"""Softmax: scores to probabilities."""

from __future__ import annotations

from crossbow.conf import configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SoftmaxBackward, SoftmaxForward
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class AlongAxis(Kernel):
    """Common base of SoftMax, LogSoftMax and Classify, whose classes lie along an axis."""

    axis: int = 1
    """Axis of the classes, not 0."""

    def __post_init__(self) -> None:
        if not is_integer(self.axis) or self.axis == 0:
            raise refuse(self, "axis", self.axis, "an integer ≥ 1, or ≤ −1 to count from the end")

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if not 1 <= self.first_axis(x) < len(x):
            raise ValueError(f"expected an input of shape (N, …) that has an axis={self.axis}. Received: {x}")
        return x

    def first_axis(self, x: Shape) -> int:
        """The axis as a non-negative index."""
        return self.axis if self.axis > 0 else len(x) + self.axis


@configuration
class SoftMax(AlongAxis):
    """y = exp(x) / Σ exp(x), with the sum over `axis`; computed from x − max x to prevent overflow.

    x and y: (N, classes), or with more dimensions. A negative axis counts from the end. Axis 0 is rejected, because
    examples are independent.

    Use it before a `SoftMaxLoss`, which is then computed from the logits.

    Ports SoftMax.java and cudnnsoftmax.cu.

    See also: `SoftMaxLoss`, `LogSoftMax`, `Accuracy`.
    """

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.prepare(SoftmaxForward(x, site.output, self.first_axis(x.shape))),)

    def gradient(self, input: int = 0) -> Gradient:
        return SoftMaxGradient(input=input)


@configuration
class SoftMaxGradient(Gradient):
    """Gradient of a `SoftMax`: dx = y · (dy − Σ dy · y). The gradient of a SoftMaxLoss bypasses it."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, SoftMax)
        (x,), y = site.inputs, site.output
        return (site.library.prepare(SoftmaxBackward(y, y, x, peer.first_axis(x.shape))),)
