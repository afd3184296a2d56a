"""Two-dimensional convolution and its gradients.

Activations are channels-last, where the library's direct kernels run at the processor's peak. They want the weights
in blocks of 16 × 16 channels, forward and weight gradient in the same one, the data gradient in its transpose: so a
replica keeps the former. It keeps (height, width, in, out) where kernels of our own gain, which want that, and where
padding the channels to whole blocks would lengthen every pass of solver and averaging; the library's kernels then
reorder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from crossbow.kernels.interface import ConvolutionGeometry, PreparedKernel, Storage, Variable
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn import narrow, winograd
from crossbow.kernels.onednn.activation import add_relu
from crossbow.kernels.onednn.image_convolution import ImageConvolution, image_convolution
from crossbow.kernels.onednn.memory import (
    BlockedStorage,
    activation,
    attributes,
    elements,
    engine,
    free,
    nbytes,
    plain,
    same,
    storage,
    stored,
)
from crossbow.kernels.onednn.primitive import Place, Steps, chosen, implementation
from crossbow.kernels.onednn.sums import with_bias_gradient
from crossbow.types import Shape, Tensor

TRANSPOSED = {
    "ABcd16b16a": dnnl.TAG_ABCD16A16B,
    "ABcd8b8a": dnnl.TAG_ABCD8A8B,
    "aBCde16c16b": dnnl.TAG_ABCDE16B16C,
    "aBCde8c8b": dnnl.TAG_ABCDE8B8C,
}
"""The blocked layouts that forward works in, and those with the inner blocks transposed, for the data gradient."""

PADDING_ALLOWED = 1024
"""Elements of padding that are cheaper to carry through solver and averaging than a reorder."""


class OwnKernels(Protocol):
    """A module of kernels of our own; they want the weights as `_outputs_last`."""

    def gains(self, sizes: ImageConvolution) -> bool: ...

    def gains_in_weights(self, sizes: ImageConvolution) -> bool: ...

    def forward(self, sizes: ImageConvolution, relu: bool, bias: bool) -> PreparedKernel: ...

    def backward_data(self, sizes: ImageConvolution) -> PreparedKernel: ...

    def backward_weights(self, sizes: ImageConvolution, bias: bool) -> PreparedKernel: ...


OWN: tuple[OwnKernels, ...] = (winograd, narrow)
"""The first that gains is taken."""
EXACT: tuple[OwnKernels, ...] = (narrow,)
"""Those whose rounding errors are no larger than the library's."""

FEW_OUTPUTS = 32
"""Below this the layout that forward prefers is worth a reorder (3×3, 16 → 16 channels: 334 instead of 429 µs)."""


class _Convolution:
    """What the three kernels of one convolution have in common."""

    def __init__(
        self,
        x: Tensor,
        weights: Variable,
        bias: Variable | None,
        y: Tensor,
        geometry: ConvolutionGeometry,
        own: Sequence[OwnKernels],
    ) -> None:
        self.own = own
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
        return dnnl.dnnl_convolution_forward_primitive_desc_create(
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
        return dnnl.dnnl_convolution_backward_data_primitive_desc_create(
            engine(), dnnl.CONVOLUTION_DIRECT, self.x, weights, self.y, *self.geometry, self.forward, attributes()
        )

    def _backward_weights(self) -> dnnl.Handle:
        return dnnl.dnnl_convolution_backward_weights_primitive_desc_create(
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
        """The layout of the library's weight gradient, or that of our own kernels."""
        descriptor = self.gradient_layout
        padded = nbytes(descriptor) // 4 - elements(self.sizes) > PADDING_ALLOWED
        if padded or (self.image is not None and _gaining_in_weights(self.image, self.own)):
            descriptor = _outputs_last(self.sizes)
        return self.describe(descriptor)

    def own_sizes(self, weights: Variable) -> ImageConvolution | None:
        """The sizes for kernels of our own, where these take the variable as it lies."""
        if self.image is None or not same(stored(weights, self.sizes), _outputs_last(self.sizes)):
            return None
        return self.image


def forward(
    x: Tensor,
    weights: Variable,
    bias: Variable | None,
    y: Tensor,
    geometry: ConvolutionGeometry,
    relu: bool,
    own: Sequence[OwnKernels] = OWN,
) -> PreparedKernel:
    """input0, weights[, bias] → output (relu: max(output, 0)). own: which kernels of our own may be taken, here and in
    the gradients."""
    convolution = _Convolution(x, weights, bias, y, geometry, own)
    storages: dict[str, Storage] = {}
    if weights.storage is None:
        storages["weights"] = kept = convolution.choose_storage()
        weights = Variable(weights.shape, weights.dtype, kept)
    sizes = convolution.own_sizes(weights)
    if sizes is not None and (kernels := _gaining(sizes, own)) is not None:
        return replace(kernels.forward(sizes, relu, bias is not None), storages=storages)
    kept_as = stored(weights, convolution.sizes)
    candidates = []
    if weights.shape[0] // geometry.groups >= FEW_OUTPUTS:
        blocked = isinstance(weights.storage, BlockedStorage) and weights.storage.blocks
        candidates = [kept_as, convolution.gradient_layout] if blocked else [convolution.gradient_layout]
    made = [convolution.forward_with(candidate) for candidate in candidates]
    descriptor = _first_direct(made) or convolution.forward_with(free(convolution.sizes))
    steps = Steps(f"convolution_forward{' relu' if relu else ''}")
    layout = chosen(descriptor, dnnl.QUERY_WEIGHTS_MD)
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (convolution.x, "input0"),
        dnnl.ARG_WEIGHTS: (layout, _reordered(steps, kept_as, layout)),
        dnnl.ARG_DST: (convolution.y, "output"),
    }
    reads = ["input0", "weights"]
    if convolution.bias is not None:
        operands[dnnl.ARG_BIAS] = (convolution.bias, "bias")
        reads.append("bias")
    steps.add("convolution", descriptor, operands)
    if relu:
        add_relu(steps, "output", y.elements)
    return steps.prepared(reads, ("output",), storages=storages)


def backward_data(
    dy: Tensor, weights: Variable, dx: Tensor, geometry: ConvolutionGeometry, own: Sequence[OwnKernels] = OWN
) -> PreparedKernel:
    """output_gradient, weights → input_gradient."""
    convolution = _Convolution(dx, weights, None, dy, geometry, own)
    sizes = convolution.own_sizes(weights)
    if sizes is not None and (kernels := _gaining(sizes, own)) is not None:
        return kernels.backward_data(sizes)
    transposed = TRANSPOSED.get(str(convolution.describe(convolution.gradient_layout)))
    candidates = []
    # With one channel a group, blocks would be padded 256 times over; the library has kernels of its own for that.
    if transposed is not None and (geometry.groups == 1 or weights.shape[1] > 1):
        layout = dnnl.dnnl_memory_desc_create_with_tag(convolution.sizes, dnnl.F32, transposed)
        candidates.append(convolution.backward_data_with(layout))
    descriptor = _first_direct(candidates) or convolution.backward_data_with(free(convolution.sizes))
    steps = Steps("convolution_backward_data")
    layout = chosen(descriptor, dnnl.QUERY_WEIGHTS_MD)
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_DIFF_DST: (convolution.y, "output_gradient"),
        dnnl.ARG_WEIGHTS: (layout, _reordered(steps, stored(weights, convolution.sizes), layout)),
        dnnl.ARG_DIFF_SRC: (convolution.x, "input_gradient"),
    }
    steps.add("convolution", descriptor, operands)
    return steps.prepared(("output_gradient", "weights"), ("input_gradient",))


def backward_weights(
    x: Tensor,
    dy: Tensor,
    weights: Variable,
    bias: Variable | None,
    geometry: ConvolutionGeometry,
    own: Sequence[OwnKernels] = OWN,
) -> PreparedKernel:
    """input0, output_gradient → weights_gradient[, bias_gradient]."""
    convolution = _Convolution(x, weights, None, dy, geometry, own)
    sizes = convolution.own_sizes(weights)
    if sizes is not None and (kernels := _gaining_in_weights(sizes, own)) is not None:
        return kernels.backward_weights(sizes, bias is not None)
    steps = Steps("convolution_backward_weights")
    kept_as, layout = stored(weights, convolution.sizes), convolution.gradient_layout
    place: Place = "weights_gradient" if same(kept_as, layout) else steps.reserve(nbytes(layout))
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (convolution.x, "input0"),
        dnnl.ARG_DIFF_DST: (convolution.y, "output_gradient"),
        dnnl.ARG_DIFF_WEIGHTS: (layout, place),
    }
    steps.add("convolution", convolution.backward_weights, operands)
    if not isinstance(place, str):
        steps.reorder(layout, place, kept_as, "weights_gradient")
    return with_bias_gradient(steps, dy.elements // dy.shape[1], dy.shape[1], bias is not None)


def _gaining(sizes: ImageConvolution, own: Sequence[OwnKernels]) -> OwnKernels | None:
    """Our own kernels for a convolution and the gradient of its input, where some gain."""
    return next((kernels for kernels in own if kernels.gains(sizes)), None)


def _gaining_in_weights(sizes: ImageConvolution, own: Sequence[OwnKernels]) -> OwnKernels | None:
    return next((kernels for kernels in own if kernels.gains_in_weights(sizes)), None)


def _sizes(weights: Shape, groups: int) -> Shape:
    """(outputs, channels, kh, kw), or (groups, outputs per group, …)."""
    return weights if groups == 1 else (groups, weights[0] // groups, *weights[1:])


def _outputs_last(sizes: Shape) -> dnnl.Handle:
    """Not blocked: height, width, channels, (groups,) outputs, from the slowest to the fastest."""
    *leading, channels, height, width = range(len(sizes))
    strides, step = [0] * len(sizes), 1
    for axis in reversed((height, width, channels, *leading)):
        strides[axis] = step
        step *= sizes[axis]
    return dnnl.dnnl_memory_desc_create_with_strides(sizes, dnnl.F32, strides)


def _first_direct(descriptors: Iterable[dnnl.Handle]) -> dnnl.Handle | None:
    """The first whose implementation is generated code rather than im2col and a matrix product, or plain C++."""
    for descriptor in descriptors:
        if implementation(descriptor).startswith(("jit", "brg")):
            return descriptor
    return None


def _reordered(steps: Steps, own: dnnl.Handle, wanted: dnnl.Handle) -> Place:
    """Where the weights lie in the wanted layout, after a reorder where theirs is another."""
    if same(own, wanted):
        return "weights"
    place = steps.reserve(nbytes(wanted))
    steps.reorder(own, "weights", wanted, place)
    return place
