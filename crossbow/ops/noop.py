"""The identity."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import CopyBackward, CopyForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape


@configuration
class Noop(Kernel):
    """y = x, of any shape. It has no run-time cost: y shares the memory of x.

    Use it as a placeholder, or to give an edge a name.

    Ports NoopStateless.java. Noop.java, which multiplies by a constant variable of ones, is a test aid for the
    original's engine and is omitted.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        return x

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.prepare(CopyForward(site.inputs[0], site.output)),)

    def gradient(self, input: int = 0) -> Gradient:
        return NoopGradient(input=input)


@configuration
class NoopGradient(Gradient):
    """Gradient of a `Noop`: dx = dy."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Noop)
        return (site.library.prepare(CopyBackward(site.output, site.inputs[0])),)
