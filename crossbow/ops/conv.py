"""Two-dimensional convolution."""

from __future__ import annotations

from crossbow.conf import check_boolean, check_integer, configuration, pair
from crossbow.kernels.interface import ConvolutionGeometry, PreparedKernel
from crossbow.ops.initialiser import Constant, Initialiser, Xavier
from crossbow.ops.kernel import Gradient, Kernel, Site, VariableSpec
from crossbow.types import Shape


@configuration
class Conv(Kernel):
    """Convolution (cross-correlation): y[n, o, i, j] = b[o] + Σ w[o, c, u, v] · x[n, c, i·s + u·d − p, j·s + v·d − p].

    x: (N, C, H, W); y: (N, number_of_outputs, H', W') with H' = ⌊(H + 2p − d(k − 1) − 1) / s⌋ + 1;
    weights: (number_of_outputs, C / groups, kh, kw); bias: (number_of_outputs,).
    Sizes are an integer or (height, width).

    Ports Conv.java and cudnnconv.cu; groups and dilation, which the original refuses, included.
    """

    number_of_outputs: int
    kernel_size: int | tuple[int, int] = 1
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] = 0
    dilation: int | tuple[int, int] = 1
    groups: int = 1
    bias: bool = True
    weight_initialiser: Initialiser = Xavier()
    bias_initialiser: Initialiser = Constant()

    def __post_init__(self) -> None:
        check_integer(self, "number_of_outputs", 1)
        check_integer(self, "groups", 1)
        check_boolean(self, "bias")
        self.geometry  # noqa: B018 - refuses bad sizes at construction

    @property
    def geometry(self) -> ConvolutionGeometry:
        return ConvolutionGeometry(
            kernel=pair(self, "kernel_size", 1),
            stride=pair(self, "stride", 1),
            padding=pair(self, "padding", 0),
            dilation=pair(self, "dilation", 1),
            groups=self.groups,
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != 4:
            raise ValueError(f"expected an input of shape (N, C, H, W). Received: {x}")
        n, channels, height, width = x
        if channels % self.groups or self.number_of_outputs % self.groups:
            raise ValueError(
                f"expected channels and outputs that groups={self.groups} divides. "
                f"Received: {channels} channels, number_of_outputs={self.number_of_outputs}"
            )
        g = self.geometry
        sizes = tuple(
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip((height, width), g.kernel, g.stride, g.padding, g.dilation, strict=True)
        )
        if min(sizes) < 1:
            raise ValueError(
                f"expected an input at least as large as the kernel. Received: input {height}×{width}, "
                f"kernel_size={g.kernel}, padding={g.padding}, dilation={g.dilation}"
            )
        return (n, self.number_of_outputs, *sizes)

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        channels = inputs[0][1]
        weights = VariableSpec(
            "weights", (self.number_of_outputs, channels // self.groups, *self.geometry.kernel), self.weight_initialiser
        )
        bias = VariableSpec("bias", (self.number_of_outputs,), self.bias_initialiser)
        return (weights, bias) if self.bias else (weights,)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        weights, bias = site.variables["weights"], site.variables.get("bias")
        (x,), y = site.inputs, site.output
        return (
            site.library.convolution_forward(x, weights, bias, y, self.geometry, relu=site.fused_relu),
        )

    def gradient(self, input: int = 0) -> Gradient:
        return ConvGradient(input=input)


@configuration
class ConvGradient(Gradient):
    """Gradients of a `Conv`: of its variables, and of its input unless nothing upstream trains."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Conv)
        library, (x,), dy = site.library, site.inputs, site.output
        weights, bias = site.variables["weights"], site.variables.get("bias")
        kernels = [library.convolution_backward_weights(x, dy, weights, bias, peer.geometry)]
        if site.needs_input_gradient:
            kernels.append(library.convolution_backward_data(dy, weights, x, peer.geometry))
        return tuple(kernels)
