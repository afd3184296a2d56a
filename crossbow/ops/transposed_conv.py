"""Transposed convolution over one, two or three spatial axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from crossbow.conf import configuration, refuse
from crossbow.kernels.interface import PreparedKernel, Storage, Variable
from crossbow.kernels.requests import (
    BiasBackward,
    BiasForward,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.ops.conv import Convolving
from crossbow.ops.initialiser import Initialiser, Xavier
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.ops.window import MAXIMUM_AXES, Padding, Sizes, are_sizes, per_axis, spatial_axes, times
from crossbow.types import Shape

# The kernels are those of the convolution from y to x. Roles of this operator by the roles of that convolution:
FORWARD = {"output_gradient": "input0", "input_gradient": "output"}
BACKWARD_DATA = {"input0": "output_gradient", "output": "input_gradient"}
BACKWARD_WEIGHTS = {"input0": "output_gradient", "output_gradient": "input0"}


@configuration
class TransposedConv(Convolving):
    """Transposed convolution: each x[n, c, i, j] adds w[c, o, u, v] · x[n, c, i, j] to y[n, o, i·s + u·d − p,
    j·s + v·d − p] for all o, u and v, and the bias b[o] is added.

    x: (N, C, H, W); y: (N, number_of_outputs, H', W') with H' = (H − 1) s + d(k − 1) + 1 − before − after +
    output_padding, and p equal to `before`; weights: (C, number_of_outputs / groups, kh, kw); bias:
    (number_of_outputs,). Inputs with one spatial axis, (N, C, W), or three, (N, C, D, H, W), work the same way.

    It computes the gradient of the input of a `Conv` with the same fields, so it enlarges an image by the stride. Sizes
    are an integer or a tuple with one per spatial axis. The padding may also be one pair (before, after) per spatial
    axis.

    Use it in decoders and generators. If the stride divides kernel_size, every output is a sum of the same number of
    products. The fan of the initial weights is C · kh · kw.

    Source: `torch.nn.ConvTranspose2d`, and ONNX' ConvTranspose.

    See also: `Conv`.
    """

    precision: ClassVar[Precision] = Precision.NARROW
    narrow_variables: ClassVar[bool] = True

    padding: Padding = 0
    """Elements that are cut off on each side of the output, ≥ 0."""
    output_padding: Sizes = 0
    """Elements that are added at the end of each axis of the output, ≥ 0 and less than the stride."""
    weight_initialiser: Initialiser = Xavier(norm="fan_out")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_output_padding()

    def _check_output_padding(self) -> None:
        value = self.output_padding
        if not are_sizes(value, 0):
            allowed = f"an integer ≥ 0 or a tuple of such, one per spatial axis (1 to {MAXIMUM_AXES})"
            raise refuse(self, "output_padding", value, allowed)
        lengths = {len(sizes) for sizes in (value, self.stride) if isinstance(sizes, tuple | list)}
        if len(lengths) > 1:
            raise refuse(self, "output_padding", value, f"an integer or as long as stride={self.stride!r}")
        axes = max(lengths, default=1)
        pairs = zip(per_axis(value, axes), per_axis(self.stride, axes), strict=True)
        if any(size >= stride for size, stride in pairs):
            raise refuse(self, "output_padding", value, f"less than stride={self.stride!r}")

    def geometry(self, x: Shape) -> ConvolutionGeometry:
        """The windows of the convolution from y to an x of this shape."""
        axes = spatial_axes(self, x)
        if isinstance(self.output_padding, tuple | list) and len(self.output_padding) != axes:
            raise ValueError(
                f"expected an input with {len(self.output_padding)} spatial axes, for "
                f"output_padding={self.output_padding!r}. Received: {x}"
            )
        return super().geometry(x)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        g = self.geometry(x)
        if min(x[2:]) < 1:
            raise ValueError(f"expected an input with at least one element on each spatial axis. Received: {x}")
        more = per_axis(self.output_padding, len(g.kernel))
        sizes = tuple(
            (size - 1) * s + extent - before - after + added
            for size, extent, s, (before, after), added in zip(x[2:], g.extent, g.stride, g.padding, more, strict=True)
        )
        if min(sizes) < 1:
            raise ValueError(
                f"expected a padding that leaves an output. Received: input {times(x[2:])}, "
                f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
            )
        return (x[0], self.number_of_outputs, *sizes)

    def weights_shape(self, x: Shape) -> Shape:
        return (x[1], self.number_of_outputs // self.groups, *self.geometry(x).kernel)

    def multiply_adds(self, *inputs: Shape) -> int:
        (x,) = inputs
        return math.prod(x) * self.number_of_outputs // self.groups * math.prod(self.geometry(x).kernel)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        library, (x,), y = site.library, site.inputs, site.output
        geometry, weights = self.geometry(x.shape), site.variables["weights"]
        found: Mapping[str, Storage] = {}
        if weights.storage is None:  # choose the storage that the kernel of the input's gradient prefers
            found = library.prepare(ConvolutionForward(y, weights, None, x, geometry)).storages
            weights = Variable(weights.shape, weights.dtype, found.get("weights"))
        product = library.prepare(ConvolutionBackwardData(x, weights, y, geometry)).renamed(FORWARD)
        kernels = [replace(product, storages=found)]
        if self.bias:
            kernels.append(library.prepare(BiasForward(y, site.variables["bias"])))
        return tuple(kernels)

    def gradient(self, input: int = 0) -> Gradient:
        return TransposedConvGradient(input=input)


@configuration
class TransposedConvGradient(Gradient):
    """Gradients of a `TransposedConv`: of its variables and, if an operator upstream trains, of its input."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, TransposedConv)
        library, (x,), dy = site.library, site.inputs, site.output
        geometry, weights = peer.geometry(x.shape), site.variables["weights"]
        product = library.prepare(ConvolutionBackwardWeights(dy, x, weights, None, geometry))
        kernels = [product.renamed(BACKWARD_WEIGHTS)]
        if peer.bias:
            kernels.append(library.prepare(BiasBackward(dy, site.variables["bias"])))
        if site.needs_input_gradient:
            data = library.prepare(ConvolutionForward(dy, weights, None, x, geometry))
            kernels.append(data.renamed(BACKWARD_DATA))
        return tuple(kernels)
