"""The product of two stacks of matrices, and its gradients.

cuBLAS multiplies stacks of matrices at equal distances, in as few calls as possible. If a matrix is broadcast, our own
kernel adds up the gradients of its uses, always in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossbow.kernels.cuda.cublas import CublasMatrix, MatrixProduct, matrix_product
from crossbow.kernels.cuda.inner_product import Place, ProductSteps
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import MatmulBackward, MatmulForward, MatrixProductGeometry
from crossbow.types import Array, Shape, Tensor

MOST_CALLS = 16
"""Maximum number of cuBLAS calls in one kernel. If more were needed, broadcast matrices are repeated first."""


@CUDA.kernel(MatmulForward)
def forward(request: MatmulForward) -> PreparedKernel:
    a, b, y, geometry = request.a, request.b, request.y, request.geometry
    steps = ProductSteps(request, y.dtype)
    left, right = _input(steps, a, geometry, 0), _input(steps, b, geometry, 1)
    place = steps.target(y, "output")
    _multiply(steps, left, right, _Stack(place, geometry.y), geometry.y[:-2])
    steps.store(y, place, "output")
    return steps.prepared()


@CUDA.kernel(MatmulBackward)
def backward(request: MatmulBackward) -> PreparedKernel:
    dy, a, b, number, geometry = request.dy, request.a, request.b, request.number, request.geometry
    steps = ProductSteps(request, dy.dtype)
    target, other = (a, b) if number == 0 else (b, a)
    gradient = _Stack(steps.logical(dy, "output_gradient"), geometry.y)
    factor = _input(steps, other, geometry, 1 - number).turn()
    # da = dy bᵀ and db = aᵀ dy; if the input is transposed, the transposes of these products.
    left, right = (gradient, factor) if number == 0 else (factor, gradient)
    if geometry.transposed[number]:
        left, right = right.turn(), left.turn()
    place = steps.target(target, "input_gradient")
    _multiply(steps, left, right, _Stack(place, geometry.inputs[number]), geometry.y[:-2])
    steps.store(target, place, "input_gradient")
    return steps.prepared()


@dataclass(frozen=True)
class _Stack:
    """Row-major matrices, which are multiplied as they are or transposed."""

    place: Place
    shape: Shape
    """The shape in memory."""
    turned: bool = False

    def turn(self) -> _Stack:
        return _Stack(self.place, self.shape, not self.turned)

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of rows and columns in the product."""
        rows, columns = self.shape[-2:]
        return (columns, rows) if self.turned else (rows, columns)

    @property
    def strides(self) -> tuple[int, ...]:
        """Number of elements from one matrix to the next on each axis of the stack; 0 if there is only one."""
        axes = range(len(self.shape) - 2)
        return tuple(0 if self.shape[axis] == 1 else math.prod(self.shape[axis + 1 :]) for axis in axes)


@dataclass(frozen=True)
class _Axis:
    """An axis of the stack: its size, and the distances of the matrices of the left factor, the right factor and the
    product. If the product's distance is 0, the products are added up."""

    size: int
    strides: tuple[int, int, int]


def _input(steps: ProductSteps, tensor: Tensor, geometry: MatrixProductGeometry, number: int) -> _Stack:
    """The factor of a product from one of its inputs."""
    return _Stack(steps.logical(tensor, f"input{number}"), geometry.inputs[number], geometry.transposed[number])


def _multiply(steps: ProductSteps, left: _Stack, right: _Stack, target: _Stack, stack: Shape) -> None:
    """Append the products of the factors over the whole stack, added up if the target has only one matrix."""
    (rows, inner), columns = left.sizes, right.sizes[1]
    distances = zip(left.strides, right.strides, target.strides, strict=True)
    axes = _joined([_Axis(size, strides) for size, strides in zip(stack, distances, strict=True)])
    if axes:
        size, strides = axes[-1].size, axes[-1].strides
        if not left.turned and strides == (rows * inner, 0, rows * columns):
            axes, rows = axes[:-1], rows * size  # all multiplied by the same matrix: a tall matrix
        elif left.turned and not right.turned and strides == (inner * rows, inner * columns, 0):
            axes, inner = axes[:-1], inner * size  # the sum of all products: one product along the stack
    added = [axis.strides[2] == 0 for axis in axes]
    parts = axes if not any(added) else _joined(_apart(axes, rows * columns))
    longest = max(parts, key=lambda axis: axis.size, default=_Axis(1, (0, 0, 0)))
    others = [axis for axis in parts if axis is not longest]
    if math.prod(axis.size for axis in others) > MOST_CALLS:
        _multiply(steps, _repeated(steps, left, stack), _repeated(steps, right, stack), target, stack)
        return
    place = target.place
    if any(added):
        place = steps.reserve(rows * columns * math.prod(axis.size for axis in axes))
    for index in itertools.product(*(range(axis.size) for axis in others)):
        starts = [sum(i * axis.strides[n] for i, axis in zip(index, others, strict=True)) for n in range(3)]
        _product(steps, (rows, columns, inner), (left, right, _Stack(place, target.shape)), longest, starts)
    if any(added):
        _add_up(steps, [axis.size for axis in axes], added, rows * columns, place, target.place)


def _product(
    steps: ProductSteps,
    sizes: tuple[int, int, int],
    stacks: tuple[_Stack, _Stack, _Stack],
    axis: _Axis,
    starts: Sequence[int],
) -> None:
    """Append one call of cuBLAS, for the matrices along an axis."""

    def make(at: Callable[[Place], Array]) -> MatrixProduct:
        a, b, y = (
            CublasMatrix(at(stack.place), stack.shape[-1], stack.turned, stride, start)
            for stack, stride, start in zip(stacks, axis.strides, starts, strict=True)
        )
        return matrix_product(sizes, a, b, y, steps.dtype, matrices=axis.size)

    steps.add(make)


def _joined(axes: Sequence[_Axis]) -> list[_Axis]:
    """The same stack of matrices with as few axes as possible."""
    joined: list[_Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if joined and joined[-1].strides == tuple(axis.size * stride for stride in axis.strides):
            joined[-1] = _Axis(joined[-1].size * axis.size, axis.strides)
        else:
            joined.append(axis)
    return joined


def _apart(axes: Sequence[_Axis], elements: int) -> list[_Axis]:
    """Axes with which the products, of this many elements each, are stored one after the other."""
    sizes = [axis.size for axis in axes]
    places = [elements * math.prod(sizes[number + 1 :]) for number in range(len(sizes))]
    return [_Axis(axis.size, (*axis.strides[:2], place)) for axis, place in zip(axes, places, strict=True)]


def _add_up(
    steps: ProductSteps, sizes: Sequence[int], added: Sequence[bool], elements: int, place: Place, target: Place
) -> None:
    """Append the sums of matrices of this many elements over some axes of their stack, one axis after the other."""
    left = [number for number, is_added in enumerate(added) if is_added]
    sizes = list(sizes)
    for number in left:
        inner = elements * math.prod(sizes[number + 1 :])
        outer, size, sizes[number] = math.prod(sizes[:number]), sizes[number], 1
        result = target if number == left[-1] else steps.reserve(outer * inner)
        steps.sum_rows(outer, size, inner, place, result)
        place = result


def _repeated(steps: ProductSteps, factor: _Stack, stack: Shape) -> _Stack:
    """The factor, repeated to a matrix for every element of the stack."""
    shape, place = factor.shape, factor.place
    for axis, size in enumerate(stack):
        if shape[axis] != size:
            inner, shape = math.prod(shape[axis:]), (*shape[:axis], size, *shape[axis + 1 :])
            target = steps.reserve(math.prod(shape))
            steps.repeat(math.prod(shape), size, inner, place, target)
            place = target
    return _Stack(place, shape, factor.turned)
