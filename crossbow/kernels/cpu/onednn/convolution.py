"""Two-dimensional convolution and its gradients.

Activations are channels-last, the order in which the library's direct kernels are fastest. These kernels need weights
in blocks of 16 × 16 channels; forward and weight gradient use the same blocks, and the data gradient their transpose.
So a replica stores the former. If our own kernels are faster, or if padding the channels to whole blocks would lengthen
the passes of solver and averaging, it stores (height, width, in, out) instead, and the library's kernels reorder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine, free, plain, storage, stored
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps, chosen, implementation
from crossbow.kernels.cpu.passes.activation import add_relu
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import ONEDNN, images
from crossbow.kernels.cpu.simd import narrow
from crossbow.kernels.cpu.simd.image_convolution import image_convolution
from crossbow.kernels.cpu.steps import Place
from crossbow.kernels.cpu.storage import BlockedStorage, outputs_last, strided_storage
from crossbow.kernels.interface import PreparedKernel, Storage, Variable
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.types import Shape, Tensor

TRANSPOSED = {
    "ABcd16b16a": dnnl.TAG_ABCD16A16B,
    "ABcd8b8a": dnnl.TAG_ABCD8A8B,
    "aBCde16c16b": dnnl.TAG_ABCDE16B16C,
    "aBCde8c8b": dnnl.TAG_ABCDE8B8C,
}
"""The blocked layouts of the forward pass, and the layouts with transposed inner blocks of the data gradient."""

PADDING_ALLOWED = 1024
"""Maximum number of padding elements that cost less in solver and averaging than a reorder."""


FEW_OUTPUTS = 32
"""With fewer outputs, a reorder to the preferred layout of the forward pass is worth its cost (3×3, 16 → 16 channels:
334 instead of 429 µs)."""


class _Convolution:
    """Descriptors that the three kernels of a convolution share."""

    def __init__(
        self, x: Tensor, weights: Variable, bias: Variable | None, y: Tensor, geometry: ConvolutionGeometry
    ) -> None:
        self.shape = weights.shape
        self.sizes = _sizes(weights.shape, geometry.groups)
        self.x, self.y = activation(x), activation(y)
        self.bias = None if bias is None else plain(bias.shape)
        dilation = tuple(d - 1 for d in geometry.dilation)
        before, after = zip(*geometry.padding, strict=True)
        self.geometry = (geometry.stride, dilation, before, after)
        self.image = image_convolution(x, y, geometry)
        self.forward = self.forward_with(free(self.sizes))
        self.backward_weights = self._backward_weights()

    def forward_with(self, weights: dnnl.Handle) -> dnnl.Handle:
        return dnnl.primitive_desc(
            "convolution_forward",
            engine(),
            dnnl.FORWARD_TRAINING,
            dnnl.CONVOLUTION_DIRECT,
            self.x,
            weights,
            self.bias,
            self.y,
            *self.geometry,
            attributes(),
        )

    def backward_data_with(self, weights: dnnl.Handle) -> dnnl.Handle:
        return dnnl.primitive_desc(
            "convolution_backward_data",
            engine(),
            dnnl.CONVOLUTION_DIRECT,
            self.x,
            weights,
            self.y,
            *self.geometry,
            self.forward,
            attributes(),
        )

    def _backward_weights(self) -> dnnl.Handle:
        return dnnl.primitive_desc(
            "convolution_backward_weights",
            engine(),
            dnnl.CONVOLUTION_DIRECT,
            self.x,
            free(self.sizes),
            None,
            self.y,
            *self.geometry,
            self.forward,
            attributes(),
        )

    @property
    def gradient_layout(self) -> dnnl.Handle:
        return chosen(self.backward_weights, dnnl.QUERY_DIFF_WEIGHTS_MD)

    def describe(self, descriptor: dnnl.Handle) -> BlockedStorage:
        return storage(self.shape, descriptor, self.sizes)

    def choose_storage(self) -> BlockedStorage:
        """The layout of the library's weight gradient, or the layout of our own kernel if that is faster."""
        descriptor = self.gradient_layout
        padded = dnnl.size(descriptor) // 4 - math.prod(self.sizes) > PADDING_ALLOWED
        if padded or (self.image is not None and narrow.gains_in_weights(self.image)):
            return strided_storage(self.shape, self.sizes, outputs_last(self.sizes))
        return self.describe(descriptor)


@ONEDNN.kernel(ConvolutionForward, lambda request: images(request.x))
def forward(request: ConvolutionForward) -> PreparedKernel:
    x, weights, y, geometry = request.x, request.weights, request.y, request.geometry
    convolution = _Convolution(x, weights, request.bias, y, geometry)
    storages: dict[str, Storage] = {}
    if weights.storage is None:
        storages["weights"] = kept = convolution.choose_storage()
        weights = Variable(weights.shape, weights.dtype, kept)
    kept_as = stored(weights, convolution.sizes)
    candidates = []
    if weights.shape[0] // geometry.groups >= FEW_OUTPUTS:
        blocked = isinstance(weights.storage, BlockedStorage) and weights.storage.blocks
        candidates = [kept_as, convolution.gradient_layout] if blocked else [convolution.gradient_layout]
    made = [convolution.forward_with(candidate) for candidate in candidates]
    descriptor = _first_direct(made) or convolution.forward_with(free(convolution.sizes))
    steps = PrimitiveSteps(request)
    layout = chosen(descriptor, dnnl.QUERY_WEIGHTS_MD)
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (convolution.x, "input0"),
        dnnl.ARG_WEIGHTS: (layout, steps.in_layout("weights", kept_as, layout)),
        dnnl.ARG_DST: (convolution.y, "output"),
    }
    if convolution.bias is not None:
        operands[dnnl.ARG_BIAS] = (convolution.bias, "bias")
    steps.add("convolution", descriptor, operands)
    if request.relu:
        add_relu(steps, "output", y.elements)
    return steps.prepared(storages=storages)


@ONEDNN.kernel(ConvolutionBackwardData, lambda request: images(request.dx))
def backward_data(request: ConvolutionBackwardData) -> PreparedKernel:
    weights, geometry = request.weights, request.geometry
    convolution = _Convolution(request.dx, weights, None, request.dy, geometry)
    transposed = TRANSPOSED.get(str(convolution.describe(convolution.gradient_layout)))
    candidates = []
    # With one channel per group, padding would multiply the blocks by 256; the library has special kernels for this.
    if transposed is not None and (geometry.groups == 1 or weights.shape[1] > 1):
        layout = dnnl.memory_desc(convolution.sizes, transposed)
        candidates.append(convolution.backward_data_with(layout))
    descriptor = _first_direct(candidates) or convolution.backward_data_with(free(convolution.sizes))
    steps = PrimitiveSteps(request)
    layout = chosen(descriptor, dnnl.QUERY_WEIGHTS_MD)
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_DIFF_DST: (convolution.y, "output_gradient"),
        dnnl.ARG_WEIGHTS: (layout, steps.in_layout("weights", stored(weights, convolution.sizes), layout)),
        dnnl.ARG_DIFF_SRC: (convolution.x, "input_gradient"),
    }
    steps.add("convolution", descriptor, operands)
    return steps.prepared()


@ONEDNN.kernel(ConvolutionBackwardWeights, lambda request: images(request.x))
def backward_weights(request: ConvolutionBackwardWeights) -> PreparedKernel:
    dy, weights = request.dy, request.weights
    convolution = _Convolution(request.x, weights, None, dy, request.geometry)
    steps = PrimitiveSteps(request)
    kept_as, layout = stored(weights, convolution.sizes), convolution.gradient_layout
    place: Place = "weights_gradient" if dnnl.equal(kept_as, layout) else steps.reserve(dnnl.size(layout))
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (convolution.x, "input0"),
        dnnl.ARG_DIFF_DST: (convolution.y, "output_gradient"),
        dnnl.ARG_DIFF_WEIGHTS: (layout, place),
    }
    steps.add("convolution", convolution.backward_weights, operands)
    if not isinstance(place, str):
        steps.reorder(layout, place, kept_as, "weights_gradient")
    if request.bias is not None:
        add_bias_gradient(steps, dy.elements // dy.shape[1], dy.shape[1])
    return steps.prepared()


def _sizes(weights: Shape, groups: int) -> Shape:
    """(outputs, channels, kh, kw), or (groups, outputs per group, …)."""
    return weights if groups == 1 else (groups, weights[0] // groups, *weights[1:])


def _first_direct(descriptors: Iterable[dnnl.Handle]) -> dnnl.Handle | None:
    """The first descriptor whose implementation is generated code, not im2col with a matrix product or plain C++."""
    for descriptor in descriptors:
        if implementation(descriptor).startswith(("jit", "brg")):
            return descriptor
    return None
