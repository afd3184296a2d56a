"""Tensors one behind the other along an axis: copies of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from crossbow.kernels.compiled import float32_at, int64_at, native
from crossbow.kernels.cpu.rooms import PASSES, one_layout
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import ConcatBackward, ConcatForward
from crossbow.kernels.strides import axes_in_memory
from crossbow.types import Tensor, address


@PASSES.kernel(ConcatForward, lambda request: one_layout(*request.xs, request.y))
def forward(request: ConcatForward) -> PreparedKernel:
    xs, y, axis = request.xs, request.y, request.axis
    copy_rows.address  # noqa: B018 - compile while preparing
    rows, _ = _rows(y, axis)
    lengths = [_rows(x, axis)[1] for x in xs]

    def bind(buffers: Buffers) -> Sequence[Call]:
        calls, y = [], buffers["output"]
        place = address(y)
        for role, length in zip(request.reads, lengths, strict=True):
            x = buffers[role]
            slots = (address(x), place, rows, length, length, sum(lengths))
            calls.append(copy_rows.call(request.label, *slots, references=(x, y)))
            place += 4 * length
        return calls

    return request.prepared("numba", bind)


@PASSES.kernel(ConcatBackward, lambda request: one_layout(request.dy, request.dx))
def backward(request: ConcatBackward) -> PreparedKernel:
    dy, dx, axis, start = request.dy, request.dx, request.axis, request.start
    copy_rows.address  # noqa: B018 - compile while preparing
    (rows, length), (_, whole) = _rows(dx, axis), _rows(dy, axis)
    skipped = 4 * start * (length // dx.shape[axis])

    def bind(buffers: Buffers) -> Sequence[Call]:
        source, target = buffers["output_gradient"], buffers["input_gradient"]
        slots = (address(source) + skipped, address(target), rows, length, whole, length)
        return (copy_rows.call(request.label, *slots, references=(source, target)),)

    return request.prepared("numba", bind)


def _rows(tensor: Tensor, axis: int) -> tuple[int, int]:
    """The tensor's memory as so many rows of so many elements, each with all that lies along and below the axis."""
    axes = axes_in_memory(tensor)
    outer = math.prod(tensor.shape[dimension] for dimension in axes[: axes.index(axis)])
    return outer, tensor.elements // outer


@native
def copy_rows(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: source, target, rows, elements of a row, elements from one row to the next in source and in target."""
    b = int64_at(arguments)
    for row in range(b[2]):
        source, target = float32_at(b[0] + 4 * row * b[4]), float32_at(b[1] + 4 * row * b[5])
        for i in range(b[3]):
            target[i] = source[i]
    return 0
