"""A part of a tensor, and a tensor as a part of a larger one: a reorder to or from a place inside of it.

oneDNN takes strides for a mistake where elements of one axis lie between those of another, as those of every second
column do: such parts are moved by a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crossbow.kernels.compiled import float32_at, float64_at, int64_at, native
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn.primitive import Place, Steps
from crossbow.kernels.onednn.rooms import ONEDNN
from crossbow.kernels.onednn.transpose import strided
from crossbow.kernels.requests import PadBackward, PadForward, Request, SliceBackward, SliceForward
from crossbow.kernels.strides import strides
from crossbow.types import Shape, Tensor


@ONEDNN.kernel(SliceForward)
def slice_forward(request: SliceForward) -> PreparedKernel:
    return _taken(request, request.x, request.y, *_along(request.x, request.axis, request.start, request.step))


@ONEDNN.kernel(SliceBackward)
def slice_backward(request: SliceBackward) -> PreparedKernel:
    return _put(request, request.dy, request.dx, *_along(request.dx, request.axis, request.start, request.step), 0.0)


@ONEDNN.kernel(PadForward)
def pad_forward(request: PadForward) -> PreparedKernel:
    return _put(request, request.x, request.y, request.before, [1] * len(request.before), request.value)


@ONEDNN.kernel(PadBackward)
def pad_backward(request: PadBackward) -> PreparedKernel:
    return _taken(request, request.dy, request.dx, request.before, [1] * len(request.before))


def _along(whole: Tensor, axis: int, start: int, step: int) -> tuple[list[int], list[int]]:
    """Start and step of every axis."""
    rank = len(whole.shape)
    return [start if a == axis else 0 for a in range(rank)], [step if a == axis else 1 for a in range(rank)]


def _taken(request: Request, whole: Tensor, part: Tensor, starts: Sequence[int], by: Sequence[int]) -> PreparedKernel:
    steps, (offset, distances), (read,), (write,) = (
        Steps(request),
        _place(whole, starts, by),
        request.reads,
        request.writes,
    )
    _move(steps, part.shape, (distances, (read, offset)), (strides(part), write), max(by) > 1)
    return steps.prepared()


def _put(
    request: Request, part: Tensor, whole: Tensor, starts: Sequence[int], by: Sequence[int], value: float
) -> PreparedKernel:
    steps, (offset, distances), (read,), (write,) = (
        Steps(request),
        _place(whole, starts, by),
        request.reads,
        request.writes,
    )
    if part.elements < whole.elements:
        steps.add_pass("fill", fill, (write,), whole.elements, float(value))
    _move(steps, part.shape, (strides(part), read), (distances, (write, offset)), max(by) > 1)
    return steps.prepared()


def _move(
    steps: Steps, sizes: Shape, source: tuple[Sequence[int], Place], target: tuple[Sequence[int], Place], between: bool
) -> None:
    """Append a copy from one place to another, each with its strides."""
    (from_, read), (to, write) = source, target
    if not between:
        steps.reorder(strided(sizes, from_), read, strided(sizes, to), write)
        return
    axes = sorted(zip(to, from_, sizes, strict=True), reverse=True)  # in the order in which the target lies
    slots = [number for axis in axes for number in axis]
    steps.add_pass("move", move, (read, write), len(axes), math.prod(sizes) // axes[-1][2], *slots)


def _place(whole: Tensor, starts: Sequence[int], by: Sequence[int]) -> tuple[int, list[int]]:
    """Where a part begins, in bytes, and the distances of its elements along each axis."""
    own = strides(whole)
    offset = sum(start * distance for start, distance in zip(starts, own, strict=True))
    return whole.dtype.itemsize * offset, [step * distance for step, distance in zip(by, own, strict=True)]


@native
def move(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: source, target, number of axes, rows, then for each axis its strides in target and source, and its size.
    The last axis is that of a row."""
    b = int64_at(arguments)
    last = 4 + 3 * (b[2] - 1)
    for row in range(b[3]):
        rest, to, from_ = row, 0, 0
        for axis in range(b[2] - 2, -1, -1):
            size = b[6 + 3 * axis]
            index = rest % size
            rest //= size
            to += index * b[4 + 3 * axis]
            from_ += index * b[5 + 3 * axis]
        source, target = float32_at(b[0] + 4 * from_), float32_at(b[1] + 4 * to)
        for i in range(b[last + 2]):
            target[i * b[last]] = source[i * b[last + 1]]
    return 0


@native
def fill(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: target, elements, value."""
    b, value = int64_at(arguments), np.float32(float64_at(arguments)[2])
    target = float32_at(b[0])
    for i in range(b[1]):
        target[i] = value
    return 0
