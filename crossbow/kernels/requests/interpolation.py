"""Requests of operators that resize the spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from crossbow.kernels.requests.request import Request
from crossbow.types import Layout, Tensor


@dataclass(frozen=True)
class Interpolation:
    """The source of an axis of the output: position i is taken from position ratio · i + offset of the input, not below
    0.

    The position is rounded down; with `linear`, it is between this neighbour and the next one, if there is one.
    """

    ratio: float
    offset: float
    linear: bool


@dataclass(frozen=True)
class InterpolationForward(Request):
    """output = input0 with resized spatial axes. axes: the source of each of them."""

    x: Tensor
    y: Tensor
    axes: tuple[Interpolation, ...]

    reads, writes = ("input0",), ("output",)


@dataclass(frozen=True)
class InterpolationBackward(Request):
    """The gradient of an interpolation's input."""

    dy: Tensor
    dx: Tensor
    axes: tuple[Interpolation, ...]

    reads, writes = ("output_gradient",), ("input_gradient",)


@dataclass(frozen=True)
class AxisPass:
    """The interpolation of a single axis: outer × size × inner becomes outer × target × inner."""

    axis: int
    """Number of the spatial axis."""
    outer: int
    size: int
    target: int
    inner: int
    interpolation: Interpolation


def axis_passes(x: Tensor, y: Tensor, axes: Sequence[Interpolation]) -> list[AxisPass]:
    """The passes from x to y in the order of the axes; earlier axes already have y's sizes. An unchanged axis has no
    pass, unless all axes are unchanged."""
    n, channels = x.shape[:2]
    before, after = (n, channels) if x.layout is Layout.CHANNELS_LAST else (n * channels, 1)
    sizes, targets = x.shape[2:], y.shape[2:]
    passes = [
        AxisPass(
            axis,
            before * math.prod(targets[:axis]),
            sizes[axis],
            targets[axis],
            math.prod(sizes[axis + 1 :]) * after,
            interpolation,
        )
        for axis, interpolation in enumerate(axes)
    ]
    needed = [each for each in passes if each.size != each.target or not _is_identity(each.interpolation)]
    return needed or passes[:1]


def _is_identity(interpolation: Interpolation) -> bool:
    return interpolation.ratio == 1 and (interpolation.offset == 0 or not interpolation.linear)
