"""Copies of a tensor's elements to another tensor, in logical order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from crossbow.kernels.cuda.four import four
from crossbow.kernels.cuda.launch import BLOCK, MOST_BLOCKS, CudaKernel, Launch, Structure
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import CopyBackward, CopyForward, Request
from crossbow.types import Array, Shape, Tensor

TILE, AXES = 32, 8
"""The constants AXES and TILE of sources/copy.cu."""
Copy = Callable[[Array, Array], Launch]
"""Function of source and target that returns the call."""


@CUDA.kernel(CopyForward)
def forward(request: CopyForward) -> PreparedKernel:
    return prepared_copy(request, copied(request.x, request.y))


@CUDA.kernel(CopyBackward)
def backward(request: CopyBackward) -> PreparedKernel:
    return prepared_copy(request, copied(request.dy, request.dx))


def prepared_copy(request: Request, copy: Copy) -> PreparedKernel:
    """A kernel that is a copy."""
    (read,), (write,) = request.reads, request.writes

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (copy(buffers[read], buffers[write]),)

    return request.prepared("cuda", bind)


def copied(source: Tensor, target: Tensor) -> Copy:
    """A copy of all elements in logical order."""
    if source.same_order(target):
        whole, number = CudaKernel("copy", "copy", target.dtype), np.int64(target.elements)
        return lambda x, y: whole.each(target.elements, x, y, number, pointwise=True)
    if not source.in_logical_order and not target.in_logical_order:
        kernel, constants = CudaKernel("copy", "reorder", target.dtype), (four(source), four(target))
        return lambda x, y: kernel.each(target.elements, x, y, *constants, np.int64(target.elements))
    if source.in_logical_order:
        n, c, *image = target.shape
        return _transposed(target, n, c, math.prod(image))
    n, c, *image = source.shape
    return _transposed(target, n, math.prod(image), c)


def moved(
    dtype: np.dtype[np.generic],
    sizes: Shape,
    from_strides: Sequence[int],
    to_strides: Sequence[int],
    from_start: int = 0,
    to_start: int = 0,
) -> Copy:
    """A copy of a part of a tensor to a part of another one, of the same sizes, by the strides of each."""
    used = [axis for axis in zip(to_strides, from_strides, sizes, strict=True) if axis[2] > 1]
    axes: list[tuple[int, int, int]] = []
    for to, from_, size in sorted(used, reverse=True):  # adjacent threads write adjacent elements
        if axes and axes[-1][:2] == (size * to, size * from_):
            axes[-1] = (to, from_, size * axes[-1][2])
        else:
            axes.append((to, from_, size))
    if len(axes) > AXES:
        raise ValueError(f"expected at most {AXES} axes that lie apart. Received: sizes={sizes}")
    axes = [*[(0, 0, 1)] * (AXES - len(axes)), *axes]
    kernel, elements = CudaKernel("copy", "move", dtype), math.prod(sizes)
    places, move = (np.int64(from_start), np.int64(to_start)), Structure(*(axis[i] for i in (2, 1, 0) for axis in axes))
    return lambda x, y: kernel.each(elements, x, y, *places, move, np.int64(elements))


def _transposed(target: Tensor, batch: int, rows: int, columns: int) -> Copy:
    """A copy from (batch, rows, columns) to (batch, columns, rows)."""
    if min(rows, columns) < TILE // 4:  # most of a tile would be empty
        return moved(target.dtype, (batch, columns, rows), (rows * columns, 1, columns), (rows * columns, rows, 1))
    kernel = CudaKernel("copy", "transpose", target.dtype)
    sizes, blocks = (np.int64(batch), np.int64(rows), np.int64(columns)), batch * -(-rows // TILE) * -(-columns // TILE)
    shared = TILE * (TILE + 1) * target.dtype.itemsize
    return lambda x, y: kernel.blocks(min(blocks, MOST_BLOCKS), x, y, *sizes, threads=BLOCK, shared=shared)
