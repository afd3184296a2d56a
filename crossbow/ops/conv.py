"""Convolution over one, two or three spatial axes."""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_integer, configuration, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
    RequestType,
)
from crossbow.ops.initialiser import Constant, Initialiser, Xavier
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.ops.weighted import Weighted
from crossbow.ops.window import Padding, Sizes, check_windows, padding_per_axis, per_axis, spatial_axes, times
from crossbow.types import Shape


@configuration
class Convolving(Weighted):
    """Common base of Conv and TransposedConv, with their fields."""

    number_of_outputs: int = field(kw_only=False)
    """Number of output channels, ≥ 1."""
    kernel_size: Sizes = field(default=1, kw_only=False)
    """Size of the window, ≥ 1."""
    stride: Sizes = 1
    """Distance s between neighbouring windows, ≥ 1."""
    padding: Padding = 0
    """Zeros on each side of the input, ≥ 0."""
    dilation: Sizes = 1
    """Distance d between neighbouring elements of a window, ≥ 1."""
    groups: int = 1
    """Number of groups, which divides the channels and number_of_outputs."""
    bias: bool = True
    weight_initialiser: Initialiser = Xavier()
    bias_initialiser: Initialiser = Constant()
    weight_learning_rate_multiplier: float = 1.0
    bias_learning_rate_multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_integer(self, "number_of_outputs", 1)
        check_integer(self, "groups", 1)
        super().__post_init__()
        check_windows(self)
        if self.number_of_outputs % self.groups:
            raise refuse(self, "groups", self.groups, f"a divisor of number_of_outputs={self.number_of_outputs}")

    def geometry(self, x: Shape) -> ConvolutionGeometry:
        """The windows on an input of this shape; for a transposed convolution, the windows of the convolution whose
        output has this shape. Raises ValueError if the input does not fit."""
        axes = spatial_axes(self, x)
        if x[1] % self.groups:
            raise ValueError(f"expected channels that groups={self.groups} divides. Received: {x[1]} channels")
        return ConvolutionGeometry(
            kernel=per_axis(self.kernel_size, axes),
            stride=per_axis(self.stride, axes),
            padding=padding_per_axis(self.padding, axes),
            dilation=per_axis(self.dilation, axes),
            groups=self.groups,
        )

    def bias_shape(self, x: Shape) -> Shape:
        return (self.number_of_outputs,)


@configuration
class Conv(Convolving):
    """Convolution (cross-correlation): y[n, o, i, j] = b[o] + Σ w[o, c, u, v] · x[n, c, i·s + u·d − p, j·s + v·d − p].

    x: (N, C, H, W); y: (N, number_of_outputs, H', W') with H' = ⌊(H + before + after − d(k − 1) − 1) / s⌋ + 1, and p
    equal to `before`; weights: (number_of_outputs, C / groups, kh, kw); bias: (number_of_outputs,). Inputs with one
    spatial axis, (N, C, W), or three, (N, C, D, H, W), work the same way.

    Sizes are an integer, or a tuple with one integer per spatial axis, such as (height, width). The padding may also be
    one pair (before, after) per spatial axis, such as ((1, 2), (0, 1)). Group g of the outputs depends only on group g
    of the channels: groups=C is a depthwise convolution.

    Use it with `bias=False` before a `BatchNorm`. A following `ReLU` is fused into its kernel.

    Ports Conv.java and cudnnconv.cu. Fixed from the original: groups and dilation work, padding may differ between
    the two sides, and one to three spatial axes are supported.

    See also: `Pool`, `BatchNorm`, `InnerProduct`, `ChannelShuffle`, `TransposedConv`.
    """

    precision: ClassVar[Precision] = Precision.NARROW
    narrow_variables: ClassVar[bool] = True

    @property
    def takes_relu(self) -> RequestType | None:
        return ConvolutionForward

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        g = self.geometry(x)
        sizes = tuple(
            (size + before + after - extent) // s + 1
            for size, extent, s, (before, after) in zip(x[2:], g.extent, g.stride, g.padding, strict=True)
        )
        if min(sizes) < 1:
            raise ValueError(
                f"expected an input at least as large as the kernel. Received: input {times(x[2:])}, "
                f"kernel_size={self.kernel_size}, padding={self.padding}, dilation={self.dilation}"
            )
        return (x[0], self.number_of_outputs, *sizes)

    def weights_shape(self, x: Shape) -> Shape:
        return (self.number_of_outputs, x[1] // self.groups, *self.geometry(x).kernel)

    def multiply_adds(self, *inputs: Shape) -> int:
        (x,) = inputs
        return math.prod(self.output_shape(x)) * x[1] // self.groups * math.prod(self.geometry(x).kernel)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        weights, bias = site.variables["weights"], site.variables.get("bias")
        (x,), y = site.inputs, site.output
        geometry = self.geometry(x.shape)
        return (site.library.prepare(ConvolutionForward(x, weights, bias, y, geometry, relu=site.fused_relu)),)

    def gradient(self, input: int = 0) -> Gradient:
        return ConvGradient(input=input)


@configuration
class ConvGradient(Gradient):
    """Gradients of a `Conv`: of its variables and, if an operator upstream trains, of its input."""

    @property
    def takes_sum(self) -> RequestType | None:
        return ConvolutionBackwardData

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Conv)
        library, (x,), dy = site.library, site.inputs, site.output
        weights, bias = site.variables["weights"], site.variables.get("bias")
        geometry = peer.geometry(x.shape)
        kernels = [library.prepare(ConvolutionBackwardWeights(x, dy, weights, bias, geometry))]
        if site.needs_input_gradient:
            kernels.append(library.prepare(ConvolutionBackwardData(dy, weights, x, geometry, sum=site.fused_sum)))
        return tuple(kernels)
