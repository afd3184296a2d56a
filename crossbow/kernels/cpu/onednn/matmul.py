"""The product of two stacks of matrices, and its gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, int64_at, native_pass
from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine, plain
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.passes.matrix_vector import add_row_products
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.cpu.steps import Place
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import MatmulBackward, MatmulForward, MatrixProductGeometry
from crossbow.types import Shape, Tensor

WORTH_ROWS = 16
"""Minimum number of products in a row for which a matrix and a vector are multiplied row by row, which has smaller
errors."""


def _takes(request: MatmulForward | MatmulBackward) -> bool:
    """Whether the library supports this number of dimensions."""
    return len(request.geometry.y) <= dnnl.MAXIMUM_DIMENSIONS


@ONEDNN.kernel(MatmulForward, _takes)
def forward(request: MatmulForward) -> PreparedKernel:
    a, b, y, geometry = request.a, request.b, request.y, request.geometry
    product, steps = _as_one(geometry), PrimitiveSteps(request)
    left = _factor(steps, a, "input0", product, 0)
    right = _factor(steps, b, "input1", product, 1)
    place: Place = "output" if y.in_logical_order else steps.reserve(y.nbytes)
    _multiply(steps, left, right, product.y, place)
    if not y.in_logical_order:
        steps.reorder(plain(y.shape), place, activation(y), "output")
    return steps.prepared()


@ONEDNN.kernel(MatmulBackward, _takes)
def backward(request: MatmulBackward) -> PreparedKernel:
    dy, a, b, number, geometry = request.dy, request.a, request.b, request.number, request.geometry
    product, steps = _as_one(geometry), PrimitiveSteps(request)
    target, other = (a, b) if number == 0 else (b, a)
    read = f"input{1 - number}"
    gradient = _Factor(product.y, False, _logical(steps, dy, "output_gradient"))
    factor = _factor(steps, other, read, product, 1 - number).turn()
    # da = dy bᵀ and db = aᵀ dy; if the input is transposed, the transposes of these products.
    left, right = (gradient, factor) if number == 0 else (factor, gradient)
    if product.transposed[number]:
        left, right = right.turn(), left.turn()
    shape = product.inputs[number]
    whole = (*product.y[:-2], *shape[-2:])
    place: Place = "input_gradient" if target.in_logical_order else steps.reserve(target.nbytes)
    if whole == shape:
        _multiply(steps, left, right, whole, place)
    else:
        parts = steps.reserve(4 * math.prod(whole))
        _multiply(steps, left, right, whole, parts)
        _sum(steps, whole, parts, shape, place)
    if not target.in_logical_order:
        steps.reorder(plain(target.shape), place, activation(target), "input_gradient")
    return steps.prepared()


class _Factor:
    """A stack of row-major matrices, which are multiplied as they are or transposed."""

    def __init__(self, shape: Shape, turned: bool, place: Place) -> None:
        self.shape, self.turned, self.place = shape, turned, place

    def turn(self) -> _Factor:
        return _Factor(self.shape, not self.turned, self.place)

    @property
    def descriptor(self) -> dnnl.Handle:
        sizes, strides = list(self.shape), [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        if self.turned:
            sizes[-2:], strides[-2:] = sizes[:-3:-1], strides[:-3:-1]
        return dnnl.strided_memory_desc(sizes, strides)


def _factor(steps: PrimitiveSteps, tensor: Tensor, role: str, product: MatrixProductGeometry, number: int) -> _Factor:
    """The factor of a product from one of its inputs."""
    return _Factor(product.inputs[number], product.transposed[number], _logical(steps, tensor, role))


def _as_one(geometry: MatrixProductGeometry) -> MatrixProductGeometry:
    """The geometry, with a stack of matrices that are multiplied by the same matrix joined to one tall matrix."""
    a, b = geometry.inputs
    if geometry.transposed[0] or math.prod(b[:-2]) != 1:
        return geometry
    return MatrixProductGeometry(((math.prod(a[:-1]), a[-1]), b[-2:]), geometry.transposed)


def _logical(steps: PrimitiveSteps, tensor: Tensor, role: str) -> Place:
    """The place of the tensor in logical order, after a reorder if required."""
    if tensor.in_logical_order:
        return role
    place = steps.reserve(tensor.nbytes)
    steps.reorder(activation(tensor), role, plain(tensor.shape), place)
    return place


def _multiply(steps: PrimitiveSteps, a: _Factor, b: _Factor, shape: Shape, place: Place) -> None:
    for matrices, vectors, along, across in ((a, b, not a.turned, shape[-1]), (b, a, b.turned, shape[-2])):
        if along and across == 1 and matrices.shape[-1] >= WORTH_ROWS:
            vector = (*vectors.shape[:-2], math.prod(vectors.shape[-2:]))
            add_row_products(steps, (matrices.shape, matrices.place), (vector, vectors.place), shape[:-2], place)
            return
    left, right, result = a.descriptor, b.descriptor, _Factor(shape, False, place).descriptor
    descriptor = dnnl.primitive_desc("matmul", engine(), left, right, None, result, attributes())
    operands = {dnnl.ARG_SRC: (left, a.place), dnnl.ARG_WEIGHTS: (right, b.place), dnnl.ARG_DST: (result, place)}
    steps.add("matmul", descriptor, operands)


def _sum(steps: PrimitiveSteps, whole: Shape, parts: Place, shape: Shape, place: Place) -> None:
    """Append the sums over the axes of a stack on which an input was broadcast. (For these axes the library's reduction
    has only its reference implementation, "ref:any".)"""
    matrix, matrices = math.prod(shape[-2:]), math.prod(shape[:-2])
    numbers = np.arange(matrices, dtype=np.int64).reshape(shape[:-2])
    table = np.ascontiguousarray(np.broadcast_to(numbers, whole[:-2]) * matrix).reshape(-1)
    steps.add_pass(
        "sum",
        add_matrices,
        stack=parts,
        sums=place,
        size=matrix,
        matrices=table.size,
        length=matrix * matrices,
        starts=table,
    )


ADD_MATRICES = Arguments(stack=Address, sums=Address, size=int, matrices=int, length=int, starts=Address)
"""size: elements of a matrix. length: elements of all sums. starts: for each matrix of the stack, the index of its
sum."""


@native_pass(ADD_MATRICES)
def add_matrices(block: Any) -> int:
    source, sums, size, places = float32_at(block.stack), float32_at(block.sums), block.size, int64_at(block.starts)
    for index in range(block.length):
        sums[index] = np.float32(0)
    for number in range(block.matrices):
        start, place = number * size, places[number]
        for index in range(size):
            sums[place + index] += source[start + index]
    return 0
