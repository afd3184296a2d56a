"""Interpolation along the spatial axes: a pass for each axis whose size changes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, inlined, native_pass
from crossbow.kernels.cpu.rooms import PASSES, one_layout
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import InterpolationBackward, InterpolationForward
from crossbow.kernels.requests.interpolation import AxisPass, axis_passes


@PASSES.kernel(InterpolationForward, lambda request: one_layout(request.x, request.y))
def forward(request: InterpolationForward) -> PreparedKernel:
    return _steps(Steps(request), axis_passes(request.x, request.y, request.axes), interpolate, "input0", "output")


@PASSES.kernel(InterpolationBackward, lambda request: one_layout(request.dy, request.dx))
def backward(request: InterpolationBackward) -> PreparedKernel:
    passes = axis_passes(request.dx, request.dy, request.axes)[::-1]
    return _steps(Steps(request), passes, interpolate_gradient, "output_gradient", "input_gradient")


def _steps(steps: Steps, passes: list[AxisPass], function: Any, first: str, last: str) -> PreparedKernel:
    """The passes, which run one after the other. All except the last write to the workspace."""
    source: Place = first
    for number, each in enumerate(passes):
        length = each.target if function is interpolate else each.size
        ends = number == len(passes) - 1
        result: Place = last if ends else steps.reserve(4 * each.outer * length * each.inner)
        steps.add_pass(
            f"axis {each.axis}",
            function,
            x=source if function is interpolate else result,
            y=result if function is interpolate else source,
            outer=each.outer,
            size=each.size,
            target=each.target,
            inner=each.inner,
            ratio=each.interpolation.ratio,
            offset=each.interpolation.offset,
            linear=int(each.interpolation.linear),
        )
        source = result
    return steps.prepared()


ALONG_AXIS = Arguments(
    x=Address, y=Address, outer=int, size=int, target=int, inner=int, ratio=float, offset=float, linear=int
)
"""x: outer × size × inner; y: outer × target × inner."""


@inlined
def _lower(i: int, size: int, ratio: float, offset: float) -> int:
    """The position of x from which position i of y is taken, or the lower one of its two positions."""
    return min(math.floor(max(ratio * i + offset, 0.0)), size - 1)


@inlined
def _part(i: int, lower: int, size: int, ratio: float, offset: float, linear: int) -> Any:
    """The factor of the position that follows the lower one."""
    if linear == 0 or lower == size - 1:
        return np.float32(0)
    return np.float32(max(ratio * i + offset, 0.0) - lower)


@native_pass(ALONG_AXIS)
def interpolate(block: Any) -> int:
    size, target, inner, ratio, offset = block.size, block.target, block.inner, block.ratio, block.offset
    for row in range(block.outer):
        x, y = float32_at(block.x + 4 * row * size * inner), float32_at(block.y + 4 * row * target * inner)
        for i in range(target):
            lower = _lower(i, size, ratio, offset)
            part = _part(i, lower, size, ratio, offset, block.linear)
            if part == 0:
                for k in range(inner):
                    y[i * inner + k] = x[lower * inner + k]
            else:
                for k in range(inner):
                    first, second = x[lower * inner + k], x[(lower + 1) * inner + k]
                    y[i * inner + k] = (np.float32(1) - part) * first + part * second
    return 0


@native_pass(ALONG_AXIS)
def interpolate_gradient(block: Any) -> int:
    """x and y are gradients; x is written."""
    size, target, inner, ratio, offset = block.size, block.target, block.inner, block.ratio, block.offset
    for row in range(block.outer):
        x, y = float32_at(block.x + 4 * row * size * inner), float32_at(block.y + 4 * row * target * inner)
        for k in range(size * inner):
            x[k] = np.float32(0)
        for i in range(target):
            lower = _lower(i, size, ratio, offset)
            part = _part(i, lower, size, ratio, offset, block.linear)
            for k in range(inner):
                x[lower * inner + k] += (np.float32(1) - part) * y[i * inner + k]
            if part != 0:
                for k in range(inner):
                    x[(lower + 1) * inner + k] += part * y[i * inner + k]
    return 0
