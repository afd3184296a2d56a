"""A part of a tensor, and a tensor as a part of a larger one."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.kernels.reference.prepare import Floats

Place = tuple[slice, ...]
"""Which elements of the larger tensor the part is."""


def sliced(axis: int, start: int, step: int, count: int) -> Place:
    """Every so-manieth along an axis."""
    return (*[slice(None)] * axis, slice(start, start + step * count, step))


def inside(before: Sequence[int], sizes: Sequence[int]) -> Place:
    """What lies so far inside on each axis."""
    return tuple(slice(start, start + size) for start, size in zip(before, sizes, strict=True))


def taken(*, input0: Floats, output: Floats, place: Place) -> None:
    """y = the part of x."""
    output[...] = input0[place]


def put_back(*, output_gradient: Floats, input_gradient: Floats, place: Place) -> None:
    """dx = dy as a part of zeros."""
    input_gradient[...] = 0
    input_gradient[place] = output_gradient


def put(*, input0: Floats, output: Floats, place: Place, value: float) -> None:
    """y = x as a part of a tensor of one value."""
    output[...] = value
    output[place] = input0


def taken_back(*, output_gradient: Floats, input_gradient: Floats, place: Place) -> None:
    """dx = the part of dy."""
    input_gradient[...] = output_gradient[place]
