"""A part of a tensor, and a tensor as a part of a larger one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.copy import moved
from crossbow.kernels.cuda.launch import Kernel, computed_in
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.strides import strides
from crossbow.types import Tensor

FORWARD, BACKWARD = ("input0", "output"), ("output_gradient", "input_gradient")


def slice_forward(x: Tensor, y: Tensor, axis: int, start: int, step: int) -> PreparedKernel:
    """input0 → output."""
    offset, distances = start * strides(x)[axis], _distances(x, axis, step)
    return _taken("slice_forward", x, y, offset, distances, *FORWARD)


def slice_backward(dy: Tensor, dx: Tensor, axis: int, start: int, step: int) -> PreparedKernel:
    """output_gradient → input_gradient."""
    offset, distances = start * strides(dx)[axis], _distances(dx, axis, step)
    return _put("slice_backward", dy, dx, offset, distances, 0.0, *BACKWARD)


def pad_forward(x: Tensor, y: Tensor, before: Sequence[int], value: float) -> PreparedKernel:
    """input0 → output."""
    return _put("pad_forward", x, y, _inside(y, before), strides(y), value, *FORWARD)


def pad_backward(dy: Tensor, dx: Tensor, before: Sequence[int]) -> PreparedKernel:
    """output_gradient → input_gradient."""
    return _taken("pad_backward", dy, dx, _inside(dy, before), strides(dy), *BACKWARD)


def _distances(whole: Tensor, axis: int, step: int) -> tuple[int, ...]:
    return tuple(distance * (step if a == axis else 1) for a, distance in enumerate(strides(whole)))


def _inside(whole: Tensor, before: Sequence[int]) -> int:
    return sum(start * distance for start, distance in zip(before, strides(whole), strict=True))


def _taken(
    name: str, whole: Tensor, part: Tensor, offset: int, distances: Sequence[int], read: str, write: str
) -> PreparedKernel:
    copy = moved(part.dtype, part.shape, distances, strides(part), from_start=offset)

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (copy(buffers[read], buffers[write]),)

    return PreparedKernel(f"{name} cuda", (read,), (write,), bind)


def _put(
    name: str,
    part: Tensor,
    whole: Tensor,
    offset: int,
    distances: Sequence[int],
    value: float,
    read: str,
    write: str,
) -> PreparedKernel:
    copy = moved(part.dtype, part.shape, strides(part), distances, to_start=offset)
    fill, number = Kernel("copy", "fill", whole.dtype), computed_in(whole.dtype).type(value)

    def bind(buffers: Buffers) -> Sequence[Call]:
        target = buffers[write]
        return fill.each(whole.elements, target, number, np.int64(whole.elements)), copy(buffers[read], target)

    return PreparedKernel(f"{name} cuda", (read,), (write,), bind)
