"""Factors and offsets that lie along some axes of a tensor: one pass over memory for any of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.kernels.compiled import NativeFunction, float32_at, float64_at, inlined, int64_at, native
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import ScalingBackward, ScalingForward
from crossbow.kernels.strides import axes_in_memory
from crossbow.types import Shape, Tensor, address

Axis = tuple[int, int]
"""A size, and the distance between the variables of neighbours (0 where they have the same)."""


@PASSES.kernel(ScalingForward, lambda request: alike(request.x, request.y))
def forward(request: ScalingForward) -> PreparedKernel:
    roles, numbers = ("input0", "output", "weights", "bias"), _numbers(request.x, request.weights.shape, request.axis)
    return _prepared(request, scale_rows, roles, numbers)


@PASSES.kernel(ScalingBackward, lambda request: alike(request.x, request.dy, request.dx or request.x))
def backward(request: ScalingBackward) -> PreparedKernel:
    shape = request.weights.shape
    roles = (*request.reads, "weights_gradient", "bias_gradient", "input_gradient", "workspace")
    numbers = (*_numbers(request.x, shape, request.axis), math.prod(shape))
    return _prepared(request, scale_rows_gradient, roles, numbers, workspace=2 * 8 * math.prod(shape))


def _prepared(
    request: ScalingForward | ScalingBackward,
    function: NativeFunction,
    roles: Sequence[str],
    numbers: Sequence[int],
    workspace: int = 0,
) -> PreparedKernel:
    """The pass on a block of the addresses of `roles`, 0 for one that the kernel does not use, and `numbers`."""
    function.address  # noqa: B018 - compile while preparing
    used = {*request.roles, "workspace"}

    def bind(buffers: Buffers) -> Sequence[Call]:
        places = [address(buffers[role]) if role in used else 0 for role in roles]
        return (function.call(request.label, *places, *numbers, references=tuple(buffers.values())),)

    return request.prepared("numba", bind, workspace=workspace)


def _numbers(x: Tensor, variable: Shape, axis: int) -> tuple[int, ...]:
    """Four sizes, outermost first, and the distances between the variables along each."""
    distances = {axis + d: math.prod(variable[d + 1 :]) for d in range(len(variable))}
    axes: list[Axis] = []
    for dimension in axes_in_memory(x):
        size, distance = x.shape[dimension], distances.get(dimension, 0)
        if size == 1:
            continue
        if axes and axes[-1][1] == size * distance:  # the two are one longer axis
            axes[-1] = (axes[-1][0] * size, distance)
        else:
            axes.append((size, distance))
    axes = [(1, 0)] * (4 - len(axes)) + axes
    sizes, between = zip(*axes, strict=True)
    return (*sizes, *between)


@inlined
def _scale(y: Any, weights: Any, distance: int, count: int) -> None:
    """y ← weights · y, for a row. Steps of 1 and 0 on their own: those are vector code."""
    if distance == 1:
        for i in range(count):
            y[i] = weights[i] * y[i]
    elif distance == 0:
        factor = weights[0]
        for i in range(count):
            y[i] = factor * y[i]
    else:
        for i in range(count):
            y[i] = weights[i * distance] * y[i]


@inlined
def _shift(y: Any, bias: Any, distance: int, count: int) -> None:
    """y ← y + bias, for a row."""
    if distance == 1:
        for i in range(count):
            y[i] += bias[i]
    elif distance == 0:
        offset = bias[0]
        for i in range(count):
            y[i] += offset
    else:
        for i in range(count):
            y[i] += bias[i * distance]


@inlined
def _copy(source: Any, target: Any, count: int) -> None:
    for i in range(count):
        target[i] = source[i]


@native
def scale_rows(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, weights, bias (or 0), four sizes, four distances between variables."""
    b = int64_at(arguments)
    row = 0
    for i in range(b[4]):
        for j in range(b[5]):
            for k in range(b[6]):
                variable = 4 * (i * b[8] + j * b[9] + k * b[10])
                y = float32_at(b[1] + 4 * row)
                if b[0] != b[1]:  # a row stays in the cache, and what is in place needs no look at what overlaps
                    _copy(float32_at(b[0] + 4 * row), y, b[7])
                _scale(y, float32_at(b[2] + variable), b[11], b[7])
                if b[3] != 0:
                    _shift(y, float32_at(b[3] + variable), b[11], b[7])
                row += b[7]
    return 0


@inlined
def _add_products(total: Any, x: Any, dy: Any, distance: int, count: int) -> None:
    """total += dy · x, for a row, in float64: a channel may have many elements."""
    if distance == 0:
        own = 0.0
        for i in range(count):
            own += np.float64(x[i]) * np.float64(dy[i])
        total[0] += own
    elif distance == 1:
        for i in range(count):
            total[i] += np.float64(x[i]) * np.float64(dy[i])
    else:
        for i in range(count):
            total[i * distance] += np.float64(x[i]) * np.float64(dy[i])


@inlined
def _add(total: Any, dy: Any, distance: int, count: int) -> None:
    """total += dy, for a row."""
    if distance == 0:
        own = 0.0
        for i in range(count):
            own += np.float64(dy[i])
        total[0] += own
    elif distance == 1:
        for i in range(count):
            total[i] += np.float64(dy[i])
    else:
        for i in range(count):
            total[i * distance] += np.float64(dy[i])


@native
def scale_rows_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, dy, weights, dweights, dbias (or 0), dx (or 0), workspace (float64 sums), four sizes, four distances
    between variables, how many there are."""
    b = int64_at(arguments)
    sums, count, row = float64_at(b[6]), b[15], 0
    for index in range(2 * count):
        sums[index] = 0.0
    for i in range(b[7]):
        for j in range(b[8]):
            for k in range(b[9]):
                variable = i * b[11] + j * b[12] + k * b[13]
                dy = float32_at(b[1] + 4 * row)
                _add_products(float64_at(b[6] + 8 * variable), float32_at(b[0] + 4 * row), dy, b[14], b[10])
                if b[4] != 0:
                    _add(float64_at(b[6] + 8 * (count + variable)), dy, b[14], b[10])
                if b[5] != 0:
                    dx = float32_at(b[5] + 4 * row)
                    if b[5] != b[1]:
                        _copy(dy, dx, b[10])
                    _scale(dx, float32_at(b[2] + 4 * variable), b[14], b[10])
                row += b[10]
    for index in range(count):
        float32_at(b[3])[index] = np.float32(sums[index])
        if b[4] != 0:
            float32_at(b[4])[index] = np.float32(sums[count + index])
    return 0
