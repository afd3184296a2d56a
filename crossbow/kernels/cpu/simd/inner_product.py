"""Inner product and its gradients as products of register tiles, if oneDNN is not installed or rejects a request.

A replica keeps the weights transposed: (features, outputs), the features in the order of the input's memory. The data
gradient is computed transposed, dxᵀ = w · dyᵀ, so that the columns of all products are contiguous. One thread only.
"""

from __future__ import annotations

import math
from typing import Any

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, inlined, native_pass
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.cpu.simd.tile import PRODUCT, Product, multiply_chunk
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.cpu.storage import lies, strided_storage
from crossbow.kernels.cpu.threads import max_threads
from crossbow.kernels.interface import PreparedKernel, Storage
from crossbow.kernels.requests import InnerProductBackwardData, InnerProductBackwardWeights, InnerProductForward
from crossbow.types import Layout, Shape, Tensor

InnerProduct = InnerProductForward | InnerProductBackwardData | InnerProductBackwardWeights


def tensors(request: InnerProduct) -> tuple[Tensor, Tensor]:
    """The input, or its gradient, and the output, or its gradient."""
    if isinstance(request, InnerProductForward):
        return request.x, request.y
    return (request.dx if isinstance(request, InnerProductBackwardData) else request.x), request.dy


def weights_by_input(x: Tensor, y: Tensor, weights: Shape) -> tuple[Shape, tuple[int, ...]]:
    """Sizes and strides of weights whose features have the order of the input's memory, and contiguous outputs.
    If the features are images whose memory is not in order C, H, W, they have three axes."""
    outputs, features = weights
    if x.layout is Layout.CHANNELS_LAST and len(y.shape) == 2:
        _, channels, height, width = x.shape
        return (outputs, channels, height, width), (1, outputs, width * channels * outputs, channels * outputs)
    return (outputs, features), (1, outputs)


def in_rows(x: Tensor, y: Tensor) -> bool:
    """Whether both tensors are matrices in memory. The weights have the order of an example's memory."""
    return len(y.shape) == 2 or (x.in_logical_order and y.in_logical_order)


def _taken(request: InnerProduct) -> bool:
    (x, y), weights = tensors(request), request.weights
    if max_threads() != 1 or not in_rows(x, y):
        return False
    free = weights.storage is None and isinstance(request, InnerProductForward)
    return free or lies(weights, *weights_by_input(x, y, weights.shape))


@PASSES.kernel(InnerProductForward, _taken)
def forward(request: InnerProductForward) -> PreparedKernel:
    weights, (outputs, features) = request.weights, request.weights.shape
    rows = math.prod(request.y.shape[:-1])
    storages: dict[str, Storage] = {}
    if weights.storage is None:
        sizes, strides = weights_by_input(request.x, request.y, weights.shape)
        storages["weights"] = strided_storage(weights.shape, sizes, strides)
    product = Product(
        rows,
        outputs,
        outer=1,
        inner=features,
        a_row=features,
        a_inner=1,
        b_inner=outputs,
        c_row=outputs,
        relu=int(request.relu),
    )
    steps = Steps(request, "tiles")
    bias = "bias" if request.bias is not None else None
    steps.add_pass("product", multiply, a="input0", b="weights", c="output", bias=bias, product=product.arguments)
    return steps.prepared(storages=storages)


@PASSES.kernel(InnerProductBackwardData, _taken)
def backward_data(request: InnerProductBackwardData) -> PreparedKernel:
    outputs, features = request.weights.shape
    rows = math.prod(request.dy.shape[:-1])
    product = Product(features, rows, outer=1, inner=outputs, a_row=outputs, a_inner=1, b_inner=rows, c_row=rows)
    steps = Steps(request, "tiles")
    gradient, result = steps.reserve(4 * rows * outputs), steps.reserve(4 * rows * features)
    steps.add_pass("transpose", transpose, source="output_gradient", target=gradient, rows=rows, columns=outputs)
    steps.add_pass("product", multiply, a="weights", b=gradient, c=result, bias=None, product=product.arguments)
    steps.add_pass("transpose", transpose, source=result, target="input_gradient", rows=features, columns=rows)
    return steps.prepared()


@PASSES.kernel(InnerProductBackwardWeights, _taken)
def backward_weights(request: InnerProductBackwardWeights) -> PreparedKernel:
    outputs, features = request.weights.shape
    rows = math.prod(request.dy.shape[:-1])
    product = Product(features, outputs, outer=1, inner=rows, a_row=1, a_inner=features, b_inner=outputs, c_row=outputs)
    steps = Steps(request, "tiles")
    steps.add_pass(
        "product",
        multiply,
        a="input0",
        b="output_gradient",
        c="weights_gradient",
        bias=None,
        product=product.arguments,
    )
    if request.bias is not None:
        add_bias_gradient(steps, rows, outputs)
    return steps.prepared()


@native_pass(Arguments(a=Address, b=Address, c=Address, bias=Address, product=PRODUCT))
def multiply(block: Any) -> int:
    for chunk in range(block.product.chunks):
        multiply_chunk(block.product, chunk, block.a, block.b, block.c, block.bias)
    return 0


BLOCK = 16
"""Number of rows and columns that are transposed at once: whole cache lines of both matrices."""


@inlined
def _transpose_block(source: int, target: int, rows: int, columns: int, first: int, start: int) -> None:
    x, y = float32_at(source), float32_at(target)
    for i in range(first, min(first + BLOCK, rows)):
        for j in range(start, min(start + BLOCK, columns)):
            y[j * rows + i] = x[i * columns + j]


@native_pass(Arguments(source=Address, target=Address, rows=int, columns=int))
def transpose(block: Any) -> int:
    """target = sourceᵀ. rows, columns: sizes of the source."""
    for first in range(0, block.rows, BLOCK):
        for start in range(0, block.columns, BLOCK):
            _transpose_block(block.source, block.target, block.rows, block.columns, first, start)
    return 0
