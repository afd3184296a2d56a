"""Inner product and its gradients.

A replica stores the weights transposed: (features, outputs), without blocks or padding, and with features in the order
of the input's memory (height, width, channels for an image). Then forward and weight gradient are matrix products
without transposes. The data gradient is a product with a transpose, which the library computes fast only for few rows,
so it is computed in blocks of rows. One thread, 1024 → 1024, in µs at batch 8 | 16 | 32: transposed 532 | 1011 | 1981,
the library's own blocked choice 602 | 1053 | 1978, row-major 578 | 1580 | 2500; 800 → 500 is 5 to 20 % faster than
blocked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.matrix import Matrix, multiply, product_call
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine, plain, storage, stored
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.passes.activation import add_relu
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.cpu.steps import Place
from crossbow.kernels.cpu.storage import BlockedStorage
from crossbow.kernels.interface import Buffers, Call, GradientBlock, PreparedKernel, Storage, Variable
from crossbow.kernels.requests import InnerProductBackwardData, InnerProductBackwardWeights, InnerProductForward
from crossbow.types import Layout, Shape, Tensor, address

ROWS = 8
"""Rows of a block of the data gradient."""

WORTH_BLOCKS = 2**20
"""Minimum size in bytes of a weight gradient that is also offered in blocks: half of a second-level cache."""
BLOCK = 2**19
"""Size of such a block in bytes."""
GRANULE = 16
"""The number of features of a block is a multiple of this number."""


class _InnerProduct:
    """Descriptors that the three kernels of an inner product share. To the library, all tensors are matrices."""

    def __init__(self, x: Tensor, weights: Variable, bias: Variable | None, y: Tensor) -> None:
        self.shape = weights.shape
        self.outputs, self.features = weights.shape
        self.sizes = _sizes(x, y, self.outputs)
        self.transposed = _transposed(self.sizes)
        self.weights = dnnl.memory_desc(weights.shape, dnnl.TAG_BA)
        self.bias = None if bias is None else plain(bias.shape)
        self.rows = math.prod(y.shape[:-1])
        self.row_per_example = len(y.shape) == 2
        self.x, self.y = self.input(self.rows), self.output(self.rows)

    def input(self, rows: int) -> dnnl.Handle:
        return plain((rows, self.features))

    def output(self, rows: int) -> dnnl.Handle:
        return plain((rows, self.outputs))

    def forward(self, rows: int) -> dnnl.Handle:
        return dnnl.primitive_desc(
            "inner_product_forward",
            engine(),
            dnnl.FORWARD_TRAINING,
            self.input(rows),
            self.weights,
            self.bias,
            self.output(rows),
            attributes(),
        )

    def in_rows(self, tensor: Tensor) -> bool:
        """Whether x or y is a matrix in memory. The weights follow the memory order of whole examples."""
        return self.row_per_example or tensor.in_logical_order

    def rows_of(self, steps: PrimitiveSteps, tensor: Tensor, role: str) -> Place:
        """The place of x, y or the gradient of y as a matrix, after a reorder if required."""
        if self.in_rows(tensor):
            return role
        place = steps.reserve(tensor.nbytes)
        steps.reorder(activation(tensor), role, plain(tensor.shape), place)
        return place

    def place(self, steps: PrimitiveSteps, weights: Variable) -> Place:
        """The place of the transposed weights, after a reorder if the replica stores another layout."""
        return steps.in_layout("weights", stored(weights, self.sizes), self.transposed)


@ONEDNN.kernel(InnerProductForward)
def forward(request: InnerProductForward) -> PreparedKernel:
    x, weights, bias, y, relu = request.x, request.weights, request.bias, request.y, request.relu
    product = _InnerProduct(x, weights, bias, y)
    steps = PrimitiveSteps(request)
    storages: dict[str, Storage] = {}
    if weights.storage is None:
        kept: BlockedStorage = storage(weights.shape, product.transposed, product.sizes)
        storages["weights"] = kept
        weights = Variable(weights.shape, weights.dtype, kept)
    place: Place = "output" if product.in_rows(y) else steps.reserve(y.nbytes)
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (product.x, product.rows_of(steps, x, "input0")),
        dnnl.ARG_WEIGHTS: (product.weights, product.place(steps, weights)),
        dnnl.ARG_DST: (product.y, place),
    }
    if product.bias is not None:
        operands[dnnl.ARG_BIAS] = (product.bias, "bias")
    steps.add("inner_product", product.forward(product.rows), operands)
    if relu:
        add_relu(steps, place, y.elements)
    if not product.in_rows(y):
        steps.reorder(plain(y.shape), place, activation(y), "output")
    return steps.prepared(storages=storages)


@ONEDNN.kernel(InnerProductBackwardData)
def backward_data(request: InnerProductBackwardData) -> PreparedKernel:
    dy, weights, dx = request.dy, request.weights, request.dx
    product = _InnerProduct(dx, weights, None, dy)
    steps = PrimitiveSteps(request)
    place = product.place(steps, weights)
    gradient = product.rows_of(steps, dy, "output_gradient")
    target: Place = "input_gradient" if product.in_rows(dx) else steps.reserve(dx.nbytes)
    block = _rows_at_once(product.rows, product.outputs)
    for first in range(0, product.rows, block):
        rows = min(block, product.rows - first)
        descriptor = dnnl.primitive_desc(
            "inner_product_backward_data",
            engine(),
            product.input(rows),
            product.weights,
            product.output(rows),
            product.forward(rows),
            attributes(),
        )
        operands: dict[int, tuple[dnnl.Handle, Place]] = {
            dnnl.ARG_DIFF_DST: (product.output(rows), _shifted(gradient, 4 * first * product.outputs)),
            dnnl.ARG_WEIGHTS: (product.weights, place),
            dnnl.ARG_DIFF_SRC: (product.input(rows), _shifted(target, 4 * first * product.features)),
        }
        steps.add("inner_product", descriptor, operands)
    if not product.in_rows(dx):
        steps.reorder(plain(dx.shape), target, activation(dx), "input_gradient")
    return steps.prepared()


@ONEDNN.kernel(InnerProductBackwardWeights)
def backward_weights(request: InnerProductBackwardWeights) -> PreparedKernel:
    x, dy, weights, bias = request.x, request.dy, request.weights, request.bias
    product = _InnerProduct(x, weights, None, dy)
    descriptor = dnnl.primitive_desc(
        "inner_product_backward_weights",
        engine(),
        product.x,
        product.weights,
        None,
        product.y,
        product.forward(product.rows),
        attributes(),
    )
    steps = PrimitiveSteps(request)
    own = stored(weights, product.sizes)
    direct = dnnl.equal(own, product.transposed)
    place: Place = "weights_gradient" if direct else steps.reserve(dnnl.size(product.transposed))
    gradient = product.rows_of(steps, dy, "output_gradient")
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (product.x, product.rows_of(steps, x, "input0")),
        dnnl.ARG_DIFF_DST: (product.y, gradient),
        dnnl.ARG_DIFF_WEIGHTS: (product.weights, place),
    }
    steps.add("inner_product", descriptor, operands)
    if not direct:
        steps.reorder(product.transposed, place, own, "weights_gradient")
    if bias is not None:
        add_bias_gradient(steps, product.rows, product.outputs, gradient)
    kernel = steps.prepared()
    direct = direct and product.in_rows(x) and product.in_rows(dy)
    worth = direct and 4 * math.prod(product.shape) >= WORTH_BLOCKS
    return _with_blocks(kernel, request, product) if worth else kernel


def _with_blocks(
    kernel: PreparedKernel, request: InnerProductBackwardWeights, product: _InnerProduct
) -> PreparedKernel:
    """The kernel, which also offers its gradient in blocks of features: consecutive rows of the transposed weights."""
    row = 4 * product.outputs
    features = max(1, BLOCK // row // GRANULE) * GRANULE
    multiply.address  # noqa: B018 - compile while preparing
    room = features * row
    bias_gradient = PrimitiveSteps(request)
    if request.bias is not None:
        add_bias_gradient(bias_gradient, product.rows, product.outputs)

    def blocks(buffers: Buffers) -> Sequence[GradientBlock]:
        x, dy = buffers["input0"], buffers["output_gradient"]
        scratch = buffers["workspace"][:room].view(np.float32)
        gradient = Matrix(address(dy), product.outputs)
        made = []
        for first in range(0, product.features, features):
            count = min(features, product.features - first)
            part = Matrix(address(x) + 4 * first, product.features, transposed=True)
            sizes = (count, product.outputs, product.rows)
            target = Matrix(address(scratch), product.outputs)
            calls: list[Call] = [product_call("weights block", sizes, part, gradient, target, (x, dy, scratch))]
            if first == 0 and request.bias is not None:
                calls += bias_gradient.bind({**buffers, "workspace": buffers["workspace"][room:]})
            place = slice(first * product.outputs, (first + count) * product.outputs)
            made.append(GradientBlock(calls, place, scratch[: count * product.outputs]))
        return made

    return replace(kernel, workspace=max(kernel.workspace, room + bias_gradient.workspace), blocks=blocks)


def _shifted(place: Place, distance: int) -> Place:
    """The place at a distance in bytes from another place."""
    if isinstance(place, int):
        return place + distance
    assert place is not None
    role, start = (place, 0) if isinstance(place, str) else place
    return (role, start + distance)


def _sizes(x: Tensor, y: Tensor, outputs: int) -> Shape:
    """The weights' sizes. If the features are whole images in another memory order than C, H, W, they have several
    axes."""
    if x.layout is Layout.CHANNELS_LAST and len(y.shape) == 2:
        return (outputs, *x.shape[1:])
    return (outputs, math.prod(x.shape[len(y.shape) - 1 :]))


def _transposed(sizes: Shape) -> dnnl.Handle:
    """The layout of the weights with features in the order of the input's memory, then outputs."""
    if len(sizes) == 2:
        return dnnl.memory_desc(sizes, dnnl.TAG_BA)
    outputs, channels, _, width = sizes
    strides = (1, outputs, width * channels * outputs, channels * outputs)
    return dnnl.strided_memory_desc(sizes, strides)


def _rows_at_once(rows: int, outputs: int) -> int:
    """The number of rows to compute at once: all, except for medium batches, in which long rows of weights compete for
    the same cache lines (1024 → 1024 at batch 16: 973 µs as a whole, 372 µs in blocks)."""
    return ROWS if 12 < rows <= 64 and outputs >= 512 else rows
