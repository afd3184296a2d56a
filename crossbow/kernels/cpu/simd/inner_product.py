"""Inner product and its gradients as products of register tiles, where oneDNN is not installed, or refuses.

A replica keeps the weights transposed: (features, outputs), the features in the order of the input's memory. The data
gradient is computed transposed, dxᵀ = w · dyᵀ, so that the columns of all products lie side by side. One thread only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crossbow.kernels.compiled import float32_at, inlined, int64_at, native
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.cpu.simd import tile
from crossbow.kernels.cpu.simd.tile import Product, multiply_chunk
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.cpu.storage import lies, strided_storage
from crossbow.kernels.cpu.threads import max_threads
from crossbow.kernels.interface import PreparedKernel, Storage
from crossbow.kernels.requests import InnerProductBackwardData, InnerProductBackwardWeights, InnerProductForward
from crossbow.types import Layout, Shape, Tensor

InnerProduct = InnerProductForward | InnerProductBackwardData | InnerProductBackwardWeights

_PRODUCT = 4
"""Where the product begins in the passes' blocks."""


def tensors(request: InnerProduct) -> tuple[Tensor, Tensor]:
    """The input, or its gradient, and the output, or its gradient."""
    if isinstance(request, InnerProductForward):
        return request.x, request.y
    return (request.dx if isinstance(request, InnerProductBackwardData) else request.x), request.dy


def weights_by_input(x: Tensor, y: Tensor, weights: Shape) -> tuple[Shape, tuple[int, ...]]:
    """The weights' sizes, with the features apart where they are whole images whose memory is not in order C, H, W; and
    the strides with which the features lie in the order of the input's memory, and the outputs side by side."""
    outputs, features = weights
    if x.layout is Layout.CHANNELS_LAST and len(y.shape) == 2:
        _, channels, height, width = x.shape
        return (outputs, channels, height, width), (1, outputs, width * channels * outputs, channels * outputs)
    return (outputs, features), (1, outputs)


def _in_rows(x: Tensor, y: Tensor) -> bool:
    """Whether both are matrices as they lie. The weights follow the order in which whole examples lie."""
    return len(y.shape) == 2 or (x.in_logical_order and y.in_logical_order)


def _taken(request: InnerProduct) -> bool:
    (x, y), weights = tensors(request), request.weights
    if max_threads() != 1 or not _in_rows(x, y):
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
    strides_ = {tile.OUTER: 1, tile.INNER: features, tile.A_ROW: features, tile.A_INNER: 1}
    strides_ |= {tile.B_INNER: outputs, tile.C_ROW: outputs, tile.RELU: int(request.relu)}
    steps = Steps(request, "tiles")
    places = ("input0", "weights", "output", "bias" if request.bias is not None else None)
    steps.add_pass("product", multiply, places, *_slots(rows, outputs, strides_))
    return steps.prepared(storages=storages)


@PASSES.kernel(InnerProductBackwardData, _taken)
def backward_data(request: InnerProductBackwardData) -> PreparedKernel:
    outputs, features = request.weights.shape
    rows = math.prod(request.dy.shape[:-1])
    strides = {tile.OUTER: 1, tile.INNER: outputs, tile.A_ROW: outputs, tile.A_INNER: 1}
    strides |= {tile.B_INNER: rows, tile.C_ROW: rows}
    steps = Steps(request, "tiles")
    gradient, result = steps.reserve(4 * rows * outputs), steps.reserve(4 * rows * features)
    steps.add_pass("transpose", transpose, ("output_gradient", gradient), rows, outputs)
    steps.add_pass("product", multiply, ("weights", gradient, result, None), *_slots(features, rows, strides))
    steps.add_pass("transpose", transpose, (result, "input_gradient"), features, rows)
    return steps.prepared()


@PASSES.kernel(InnerProductBackwardWeights, _taken)
def backward_weights(request: InnerProductBackwardWeights) -> PreparedKernel:
    outputs, features = request.weights.shape
    rows = math.prod(request.dy.shape[:-1])
    strides = {tile.OUTER: 1, tile.INNER: rows, tile.A_ROW: 1, tile.A_INNER: features}
    strides |= {tile.B_INNER: outputs, tile.C_ROW: outputs}
    steps = Steps(request, "tiles")
    places = ("input0", "output_gradient", "weights_gradient", None)
    steps.add_pass("product", multiply, places, *_slots(features, outputs, strides))
    if request.bias is not None:
        add_bias_gradient(steps, rows, outputs)
    return steps.prepared()


def _slots(rows: int, columns: int, strides: dict[int, int]) -> Sequence[int]:
    return Product(rows, columns, strides).slots


@native
def multiply(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: A, B, C, bias or 0; the product."""
    b, product = int64_at(arguments), np.int64(arguments) + 8 * _PRODUCT
    for chunk in range(int64_at(product)[tile.CHUNKS]):
        multiply_chunk(product, chunk, b[0], b[1], b[2], b[3])
    return 0


BLOCK = 16
"""Rows and columns that are transposed at once: whole cache lines of both matrices."""


@inlined
def _transpose_block(source: int, target: int, rows: int, columns: int, first: int, start: int) -> None:
    x, y = float32_at(source), float32_at(target)
    for i in range(first, min(first + BLOCK, rows)):
        for j in range(start, min(start + BLOCK, columns)):
            y[j * rows + i] = x[i * columns + j]


@native
def transpose(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: source, target, rows, columns of the source."""
    b = int64_at(arguments)
    for first in range(0, b[2], BLOCK):
        for start in range(0, b[3], BLOCK):
            _transpose_block(b[0], b[1], b[2], b[3], first, start)
    return 0
