"""Slicing and padding: a part of a tensor, and a tensor as a part of a larger one."""

from __future__ import annotations

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import PadBackward, PadForward, SliceBackward, SliceForward

Place = tuple[slice, ...]
"""The elements of the larger tensor that form the part."""


@computes(SliceForward)
def slice_forward(*, input0: Floats, output: Floats, axis: int, start: int, step: int) -> None:
    """y = the part of x."""
    output[...] = input0[_sliced(output, axis, start, step)]


@computes(SliceBackward)
def slice_backward(*, output_gradient: Floats, input_gradient: Floats, axis: int, start: int, step: int) -> None:
    """dx = dy as a part of zeros."""
    input_gradient[...] = 0
    input_gradient[_sliced(output_gradient, axis, start, step)] = output_gradient


@computes(PadForward)
def pad_forward(*, input0: Floats, output: Floats, before: tuple[int, ...], value: float) -> None:
    """y = x as a part of a constant tensor."""
    output[...] = value
    output[_inside(input0, before)] = input0


@computes(PadBackward)
def pad_backward(*, output_gradient: Floats, input_gradient: Floats, before: tuple[int, ...]) -> None:
    """dx = the part of dy."""
    input_gradient[...] = output_gradient[_inside(input_gradient, before)]


def _sliced(part: Floats, axis: int, start: int, step: int) -> Place:
    """The elements start, start + step, … along an axis."""
    return (*[slice(None)] * axis, slice(start, start + step * part.shape[axis], step))


def _inside(part: Floats, before: tuple[int, ...]) -> Place:
    """The location of a part that begins at these indices."""
    return tuple(slice(start, start + size) for start, size in zip(before, part.shape, strict=True))
