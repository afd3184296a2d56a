"""Softmax: scores to probabilities."""

from __future__ import annotations

from crossbow.conf import check_integer, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class SoftMax(Kernel):
    """y = exp(x) / Σ exp(x), the sum over `axis`; computed from x − max x, so that nothing overflows.

    x and y: (N, classes), or of more dimensions. Ports SoftMax.java and cudnnsoftmax.cu.
    """

    axis: int = 1

    def __post_init__(self) -> None:
        check_integer(self, "axis", 1)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) <= self.axis:
            raise ValueError(f"expected an input of more than axis={self.axis} dimensions. Received: {x}")
        return x

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.softmax_forward(site.inputs[0], site.output, self.axis),)

    def gradient(self, input: int = 0) -> Gradient:
        return SoftMaxGradient(input=input)


@configuration
class SoftMaxGradient(Gradient):
    """Gradient of a `SoftMax`: dx = y · (dy − Σ dy · y). That of SoftMaxLoss does not pass through it."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, SoftMax)
        (x,), y = site.inputs, site.output
        if not site.needs_input_gradient:
            return ()
        return (site.library.softmax_backward(y, y, x, peer.axis),)
