"""A part of a tensor, and a tensor as a part of a larger one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.copy import moved, prepared_copy
from crossbow.kernels.cuda.launch import CudaKernel, computed_in
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import PadBackward, PadForward, Request, SliceBackward, SliceForward
from crossbow.kernels.strides import strides
from crossbow.types import Tensor


@CUDA.kernel(SliceForward)
def slice_forward(request: SliceForward) -> PreparedKernel:
    x, axis = request.x, request.axis
    return _taken(request, request.y, request.start * strides(x)[axis], _distances(x, axis, request.step))


@CUDA.kernel(SliceBackward)
def slice_backward(request: SliceBackward) -> PreparedKernel:
    dx, axis = request.dx, request.axis
    offset, distances = request.start * strides(dx)[axis], _distances(dx, axis, request.step)
    return _put(request, request.dy, dx, offset, distances, 0.0)


@CUDA.kernel(PadForward)
def pad_forward(request: PadForward) -> PreparedKernel:
    y = request.y
    return _put(request, request.x, y, _inside(y, request.before), strides(y), request.value)


@CUDA.kernel(PadBackward)
def pad_backward(request: PadBackward) -> PreparedKernel:
    dy = request.dy
    return _taken(request, request.dx, _inside(dy, request.before), strides(dy))


def _distances(whole: Tensor, axis: int, step: int) -> tuple[int, ...]:
    return tuple(distance * (step if a == axis else 1) for a, distance in enumerate(strides(whole)))


def _inside(whole: Tensor, before: Sequence[int]) -> int:
    return sum(start * distance for start, distance in zip(before, strides(whole), strict=True))


def _taken(request: Request, part: Tensor, offset: int, distances: Sequence[int]) -> PreparedKernel:
    return prepared_copy(request, moved(part.dtype, part.shape, distances, strides(part), from_start=offset))


def _put(
    request: Request, part: Tensor, whole: Tensor, offset: int, distances: Sequence[int], value: float
) -> PreparedKernel:
    copy = moved(part.dtype, part.shape, strides(part), distances, to_start=offset)
    fill, number = CudaKernel("copy", "fill", whole.dtype), computed_in(whole.dtype).type(value)
    (read,), (write,) = request.reads, request.writes

    def bind(buffers: Buffers) -> Sequence[Call]:
        target = buffers[write]
        filled = fill.each(whole.elements, target, number, np.int64(whole.elements), pointwise=True)
        return filled, copy(buffers[read], target)

    return request.prepared("cuda", bind)
