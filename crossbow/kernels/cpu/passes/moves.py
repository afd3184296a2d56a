"""Moves of elements between tensors: copies, transposes, parts, and tensors as parts of larger ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, int64_at, native_pass, tail
from crossbow.kernels.cpu.passes.element_wise import combination
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import (
    CopyBackward,
    CopyForward,
    PadBackward,
    PadForward,
    Request,
    SliceBackward,
    SliceForward,
    TransposeBackward,
    TransposeForward,
)
from crossbow.kernels.strides import strides, transposed_strides
from crossbow.types import Shape, Tensor


@PASSES.kernel(CopyForward, lambda request: request.alias is not None)
@PASSES.kernel(CopyBackward, lambda request: request.alias is not None)
@PASSES.kernel(TransposeForward, lambda request: request.alias is not None)
@PASSES.kernel(TransposeBackward, lambda request: request.alias is not None)
def unchanged(request: Request) -> PreparedKernel:
    """A copy of elements that are already in the wanted order."""
    return combination(request, (1.0,))


def one_is_plain(x: Tensor, y: Tensor) -> bool:
    """Whether the elements move, to or from logical order."""
    return not x.same_order(y) and (x.in_logical_order or y.in_logical_order)


@PASSES.kernel(CopyForward, lambda request: one_is_plain(request.x, request.y))
def copy_forward(request: CopyForward) -> PreparedKernel:
    return _copied(request, request.x, request.y)


@PASSES.kernel(CopyBackward, lambda request: one_is_plain(request.dy, request.dx))
def copy_backward(request: CopyBackward) -> PreparedKernel:
    return _copied(request, request.dy, request.dx)


def _copied(request: Request, source: Tensor, target: Tensor) -> PreparedKernel:
    sizes = source.shape if target.in_logical_order else target.shape
    plain = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    to, from_ = (plain, strides(source)) if target.in_logical_order else (strides(target), plain)
    return _moved(request, sizes, from_, to)


@PASSES.kernel(TransposeForward, lambda request: request.alias is None)
def transpose_forward(request: TransposeForward) -> PreparedKernel:
    return _moved(request, *transposed_strides(request.x, request.y, request.sizes, request.order))


@PASSES.kernel(TransposeBackward, lambda request: request.alias is None)
def transpose_backward(request: TransposeBackward) -> PreparedKernel:
    sizes, of_dx, of_dy = transposed_strides(request.dx, request.dy, request.sizes, request.order)
    return _moved(request, sizes, of_dy, of_dx)


def _moved(request: Request, sizes: Shape, from_: Sequence[int], to: Sequence[int]) -> PreparedKernel:
    steps, (read,), (write,) = Steps(request), request.reads, request.writes
    add_move(steps, sizes, (from_, read), (to, write))
    return steps.prepared()


@PASSES.kernel(SliceForward)
def slice_forward(request: SliceForward) -> PreparedKernel:
    return taken(request, request.x, request.y, *along(request.x, request.axis, request.start, request.step))


@PASSES.kernel(SliceBackward)
def slice_backward(request: SliceBackward) -> PreparedKernel:
    return put(request, request.dy, request.dx, *along(request.dx, request.axis, request.start, request.step), 0.0)


@PASSES.kernel(PadForward)
def pad_forward(request: PadForward) -> PreparedKernel:
    return put(request, request.x, request.y, request.before, [1] * len(request.before), request.value)


@PASSES.kernel(PadBackward)
def pad_backward(request: PadBackward) -> PreparedKernel:
    return taken(request, request.dy, request.dx, request.before, [1] * len(request.before))


def along(whole: Tensor, axis: int, start: int, step: int) -> tuple[list[int], list[int]]:
    """Start and step of every axis."""
    rank = len(whole.shape)
    return [start if a == axis else 0 for a in range(rank)], [step if a == axis else 1 for a in range(rank)]


def taken(request: Request, whole: Tensor, part: Tensor, starts: Sequence[int], by: Sequence[int]) -> PreparedKernel:
    """A part of a tensor."""
    steps, (read,), (write,) = Steps(request), request.reads, request.writes
    offset, distances = inside(whole, starts, by)
    add_move(steps, part.shape, (distances, (read, offset)), (strides(part), write))
    return steps.prepared()


def put(
    request: Request, part: Tensor, whole: Tensor, starts: Sequence[int], by: Sequence[int], value: float
) -> PreparedKernel:
    """A tensor as a part of a larger one, whose other elements have the given value."""
    steps, (read,), (write,) = Steps(request), request.reads, request.writes
    offset, distances = inside(whole, starts, by)
    if part.elements < whole.elements:
        add_fill(steps, write, whole.elements, value)
    add_move(steps, part.shape, (strides(part), read), (distances, (write, offset)))
    return steps.prepared()


def inside(whole: Tensor, starts: Sequence[int], by: Sequence[int]) -> tuple[int, list[int]]:
    """Offset of a part in bytes, and the distance between neighbours along each axis, in elements."""
    own = strides(whole)
    offset = sum(start * distance for start, distance in zip(starts, own, strict=True))
    return whole.dtype.itemsize * offset, [step * distance for step, distance in zip(by, own, strict=True)]


def add_move(
    steps: Steps, sizes: Shape, source: tuple[Sequence[int], Place], target: tuple[Sequence[int], Place]
) -> None:
    """Append a copy from `source` to `target`, each given by its strides and place."""
    (from_, read), (to, write) = source, target
    # In the order of the target's memory; the last axis is a row.
    *axes, (to_step, from_step, length) = sorted(zip(to, from_, sizes, strict=True), reverse=True)
    steps.add_pass(
        "move",
        move,
        source=read,
        target=write,
        rows=math.prod(sizes) // length,
        length=length,
        source_step=from_step,
        target_step=to_step,
        outer_axes=len(axes),
        axes=[number for axis in axes for number in axis],
    )


def add_fill(steps: Steps, place: Place, elements: int, value: float) -> None:
    """Append a pass that sets `elements` numbers at a place to the value."""
    steps.add_pass("fill", fill, target=place, length=elements, value=float(value))


MOVE = Arguments(
    source=Address,
    target=Address,
    rows=int,
    length=int,
    source_step=int,
    target_step=int,
    outer_axes=int,
    tail="axes",
)
"""length, source_step, target_step: length and strides of a row, in elements. axes: for each other axis, its strides in
target and source, and its size."""


@native_pass(MOVE)
def move(block: Any) -> int:
    axes = int64_at(tail(block))
    for row in range(block.rows):
        rest, to, from_ = row, 0, 0
        for axis in range(block.outer_axes - 1, -1, -1):
            size = axes[3 * axis + 2]
            index = rest % size
            rest //= size
            to += index * axes[3 * axis]
            from_ += index * axes[3 * axis + 1]
        source, target = float32_at(block.source + 4 * from_), float32_at(block.target + 4 * to)
        for i in range(block.length):
            target[i * block.target_step] = source[i * block.source_step]
    return 0


@native_pass(Arguments(target=Address, length=int, value=float))
def fill(block: Any) -> int:
    target, value = float32_at(block.target), np.float32(block.value)
    for i in range(block.length):
        target[i] = value
    return 0
