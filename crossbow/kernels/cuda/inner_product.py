"""Inner product and its gradients: cuBLAS's matrix products, and biases and their gradients in our own passes.

Weights are row-major (outputs, features). If the rows of x are whole channels-last images, the features have that order
too (height, width, channels), so that the images are multiplied without a copy; otherwise a tensor that is not in
logical order is reordered first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from crossbow.kernels.cuda.bias import AddBias
from crossbow.kernels.cuda.copy import copied
from crossbow.kernels.cuda.cublas import CublasMatrix, matrix_product
from crossbow.kernels.cuda.launch import BLOCK, MOST_BLOCKS, CudaKernel, power_of_two
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.cuda.series import MOST_WORK, SMALL
from crossbow.kernels.cuda.storage import ChannelsLastStorage
from crossbow.kernels.interface import Buffers, Call, PlainStorage, PreparedKernel, Storage, Variable
from crossbow.kernels.requests import (
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
    Request,
)
from crossbow.types import Array, Layout, Tensor

Place = str | slice
"""The location of a matrix: a role, or a part of the workspace."""

ALIGNMENT = 256
"""Alignment in bytes of the parts of the workspace."""
COLUMNS = 32
"""Number of columns of a matrix, adjacent in memory, that a block sums at once."""
MANY_ROWS = 1024
"""Minimum number of rows whose sum is divided among the maximum number of threads of a block."""


class ProductSteps:
    """The calls of a kernel, in order, and the workspace that they need."""

    def __init__(self, request: Request, dtype: np.dtype[np.generic]) -> None:
        self.request, self.dtype, self.workspace = request, dtype, 0
        self._makers: list[Callable[[Callable[[Place], Array]], Call]] = []

    def reserve(self, elements: int) -> Place:
        """Reserve a part of the workspace."""
        start = self.workspace
        self.workspace += -(-elements * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return slice(start, self.workspace)

    def add(self, make: Callable[[Callable[[Place], Array]], Call]) -> None:
        """Append the call that `make` creates from the arrays in the places."""
        self._makers.append(make)

    def logical(self, tensor: Tensor, role: str) -> Place:
        """Return the place of the tensor in logical order, after a reorder if required."""
        if tensor.in_logical_order:
            return role
        place, reorder = self.reserve(tensor.elements), copied(tensor, replace(tensor, layout=Layout.PLAIN))
        self.add(lambda at: reorder(at(role), at(place)))
        return place

    def target(self, tensor: Tensor, role: str) -> Place:
        """Return the place for the result in logical order, which `store` then moves to the tensor."""
        return role if tensor.in_logical_order else self.reserve(tensor.elements)

    def store(self, tensor: Tensor, place: Place, role: str) -> None:
        """Append a reorder of the tensor from logical order to its own order, if required."""
        if place != role:
            reorder = copied(replace(tensor, layout=Layout.PLAIN), tensor)
            self.add(lambda at: reorder(at(place), at(role)))

    def multiply(
        self,
        sizes: tuple[int, int, int],
        a: tuple[Place, int, bool],
        b: tuple[Place, int, bool],
        target: Place,
        *,
        bias: str = "",
        relu: bool = False,
    ) -> None:
        """Append target ← a b (+ the bias of each column, the role `bias`), then optionally max(…, 0).

        sizes: rows of a, columns of b, columns of a. Factors: place, elements of a row in memory, whether transposed.
        """
        rows, columns, inner = sizes
        elements = rows * columns
        if elements <= SMALL and elements * inner <= MOST_WORK:
            small, steps = self.kernel("small_product"), [(1, w) if turned else (w, 1) for _, w, turned in (a, b)]
            numbers = [np.int32(number) for number in (*sizes, *steps[0], *steps[1], relu)]

            def product(at: Callable[[Place], Array]) -> Call:
                arguments = at(a[0]), at(b[0]), at(bias) if bias else None, at(target), *numbers
                return small.each(elements, *arguments, work=inner)

            self.add(product)
            return

        def product_of_library(at: Callable[[Place], Array]) -> Call:
            left, right = (CublasMatrix(at(place), width, transposed) for place, width, transposed in (a, b))
            return matrix_product(sizes, left, right, CublasMatrix(at(target), columns), self.dtype)

        self.add(product_of_library)
        if bias or relu:
            add = AddBias(self.dtype, (rows, columns, 1), relu=relu)
            self.add(lambda at: add(at(target), at(bias) if bias else None))

    def sum_rows(self, outer: int, rows: int, columns: int, source: Place, target: Place) -> None:
        """Append the sum of (outer, rows, columns) to (outer, columns)."""
        width = min(COLUMNS, power_of_two(columns))
        threads = 1024 if rows >= MANY_ROWS else BLOCK
        blocks = min(outer * -(-columns // width), MOST_BLOCKS)
        kernel, sizes = self.kernel("sum_rows"), (np.int64(outer), np.int64(rows), np.int64(columns), np.int32(width))
        shared = threads * np.dtype(np.float64).itemsize
        self.add(lambda at: kernel.blocks(blocks, at(source), at(target), *sizes, threads=threads, shared=shared))

    def repeat(self, elements: int, times: int, inner: int, source: Place, target: Place) -> None:
        """Append the repetition of (…, inner) to `elements` elements (…, times, inner)."""
        kernel, numbers = self.kernel("repeat"), (np.int64(elements), np.int64(times), np.int64(inner))
        self.add(lambda at: kernel.each(elements, at(source), at(target), *numbers))

    def kernel(self, name: str) -> CudaKernel:
        """Return a kernel of sources/inner_product.cu."""
        return CudaKernel("inner_product", name, self.dtype)

    def prepared(self, storages: Mapping[str, Storage] | None = None) -> PreparedKernel:
        """The kernel that makes the calls."""
        makers = tuple(self._makers)

        def bind(buffers: Buffers) -> Sequence[Call]:
            def at(place: Place) -> Array:
                return buffers[place] if isinstance(place, str) else buffers["workspace"][place]

            return tuple(make(at) for make in makers)

        return self.request.prepared("cublas", bind, workspace=self.workspace, storages=storages)


@CUDA.kernel(InnerProductForward)
def forward(request: InnerProductForward) -> PreparedKernel:
    x, weights, bias, y, relu = request.x, request.weights, request.bias, request.y, request.relu
    storages: dict[str, Storage] = {}
    if weights.storage is None:
        chosen = _storage(x, weights, y)
        storages["weights"], weights = chosen, Variable(weights.shape, weights.dtype, chosen)
    steps = ProductSteps(request, x.dtype)
    (outputs, features), rows = weights.shape, math.prod(y.shape[:-1])
    source, target = _rows(steps, x, "input0", weights), steps.target(y, "output")
    steps.multiply(
        (rows, outputs, features),
        (source, features, False),
        ("weights", features, True),
        target,
        bias="" if bias is None else "bias",
        relu=relu,
    )
    steps.store(y, target, "output")
    return steps.prepared(storages)


@CUDA.kernel(InnerProductBackwardData)
def backward_data(request: InnerProductBackwardData) -> PreparedKernel:
    dy, weights, dx = request.dy, request.weights, request.dx
    steps = ProductSteps(request, dx.dtype)
    (outputs, features), rows = weights.shape, math.prod(dy.shape[:-1])
    gradient = steps.logical(dy, "output_gradient")
    target = "input_gradient" if _as_it_lies(dx, weights) else steps.target(dx, "input_gradient")
    steps.multiply((rows, features, outputs), (gradient, outputs, False), ("weights", features, False), target)
    steps.store(dx, target, "input_gradient")
    return steps.prepared()


@CUDA.kernel(InnerProductBackwardWeights)
def backward_weights(request: InnerProductBackwardWeights) -> PreparedKernel:
    x, dy, weights, bias = request.x, request.dy, request.weights, request.bias
    steps = ProductSteps(request, x.dtype)
    (outputs, features), rows = weights.shape, math.prod(dy.shape[:-1])
    source, gradient = _rows(steps, x, "input0", weights), steps.logical(dy, "output_gradient")
    if bias is not None:  # first: it can be part of a series with the kernels that computed dy
        steps.sum_rows(1, rows, outputs, gradient, "bias_gradient")
    product = (outputs, features, rows)
    steps.multiply(product, (gradient, outputs, True), (source, features, False), "weights_gradient")
    return steps.prepared()


def _storage(x: Tensor, weights: Variable, y: Tensor) -> Storage:
    """The best storage of the weights: with features in the order of the input's memory, if the input consists of whole
    images."""
    whole_images = len(y.shape) == 2 and not x.in_logical_order
    return ChannelsLastStorage(weights.shape, x.shape[1:]) if whole_images else PlainStorage(weights.shape)


def _rows(steps: ProductSteps, x: Tensor, role: str, weights: Variable) -> Place:
    """The place of x as rows of features, in the order of the weights."""
    return role if _as_it_lies(x, weights) else steps.logical(x, role)


def _as_it_lies(x: Tensor, weights: Variable) -> bool:
    """Whether the features of the weights have the memory order of channels-last images x."""
    storage = weights.storage
    if not isinstance(storage, ChannelsLastStorage):
        return False
    if x.layout is Layout.CHANNELS_LAST and x.shape[1:] == storage.image:
        return True
    raise ValueError(f"expected channels-last images of {storage.image}, as the weights are stored for. Received: {x}")
