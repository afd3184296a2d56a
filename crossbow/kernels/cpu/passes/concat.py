"""Concatenation along an axis, as copies of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, native_pass
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
            call = copy_rows.call(
                request.label,
                source=x,
                target=place,
                rows=rows,
                length=length,
                source_row=length,
                target_row=sum(lengths),
                references=(y,),
            )
            calls.append(call)
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
        call = copy_rows.call(
            request.label,
            source=address(source) + skipped,
            target=target,
            rows=rows,
            length=length,
            source_row=whole,
            target_row=length,
            references=(source,),
        )
        return (call,)

    return request.prepared("numba", bind)


def _rows(tensor: Tensor, axis: int) -> tuple[int, int]:
    """Number and length of the rows of a tensor's memory, where a row contains all elements from the axis on."""
    axes = axes_in_memory(tensor)
    outer = math.prod(tensor.shape[dimension] for dimension in axes[: axes.index(axis)])
    return outer, tensor.elements // outer


COPY_ROWS = Arguments(source=Address, target=Address, rows=int, length=int, source_row=int, target_row=int)
"""length: length of a row. source_row, target_row: distances between rows. All in elements."""


@native_pass(COPY_ROWS)
def copy_rows(block: Any) -> int:
    for row in range(block.rows):
        source = float32_at(block.source + 4 * row * block.source_row)
        target = float32_at(block.target + 4 * row * block.target_row)
        for i in range(block.length):
            target[i] = source[i]
    return 0
