"""Flattening of a tensor to a matrix."""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar

from crossbow.conf import configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import CopyBackward, CopyForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape


@configuration
class Flatten(Kernel):
    """Flattens x to a matrix: the dimensions before `axis` become the first one, and all others the second one.

    x: (d_0, …, d_{r-1}); y: (d_0 ⋯ d_{axis-1}, d_axis ⋯ d_{r-1}), with the elements in logical order, C, H, W,
    independent of the memory layout. A negative axis counts from the end, as in ONNX; axis=1 keeps the examples
    separate. If memory is already in logical order, as after global pooling, y shares the memory of x.

    `InnerProduct` flattens its input by itself, so most networks need no Flatten.

    The original has no such operator (its InnerProduct flattens, too).

    See also: `Reshape`, `InnerProduct`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    axis: int = field(default=1, kw_only=False)
    """First dimension of the second group."""

    def __post_init__(self) -> None:
        if not is_integer(self.axis):
            raise refuse(self, "axis", self.axis, "an integer")

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if not -len(x) <= self.axis <= len(x):
            raise ValueError(f"expected an input that can be split at axis={self.axis}. Received: {x}")
        axis = self.axis if self.axis >= 0 else len(x) + self.axis
        return (math.prod(x[:axis]), math.prod(x[axis:]))

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.prepare(CopyForward(site.inputs[0], site.output)),)

    def gradient(self, input: int = 0) -> Gradient:
        return FlattenGradient(input=input)


@configuration
class FlattenGradient(Gradient):
    """Gradient of a `Flatten`: dx = dy, with the dimensions and the order of x."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Flatten)
        return (site.library.prepare(CopyBackward(site.output, site.inputs[0])),)
