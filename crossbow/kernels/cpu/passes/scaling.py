"""Factors and offsets along some axes of a tensor: one pass over memory for any axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, float64_at, inlined, native_pass, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ScalingBackward, ScalingForward
from crossbow.kernels.strides import axes_in_memory
from crossbow.types import Shape, Tensor

Axis = tuple[int, int]
"""A size, and the distance between the variables of neighbours (0 if they share a variable)."""

AXES = Arguments(outer=int, middle=int, inner=int, length=int)
"""A number for each of four axes, in the order of memory; the last axis is a row."""


@PASSES.kernel(ScalingForward, lambda request: alike(request.x, request.y))
def forward(request: ScalingForward) -> PreparedKernel:
    sizes, steps = variable_axes(request.x, request.weights.shape, request.axis)
    return prepared_pass(
        request,
        scale_rows,
        x="input0",
        y="output",
        weights="weights",
        bias="bias" if "bias" in request.reads else None,
        sizes=sizes,
        steps=steps,
    )


@PASSES.kernel(ScalingBackward, lambda request: alike(request.x, request.dy, request.dx or request.x))
def backward(request: ScalingBackward) -> PreparedKernel:
    sizes, steps = variable_axes(request.x, request.weights.shape, request.axis)
    variables = math.prod(request.weights.shape)
    return prepared_pass(
        request,
        scale_rows_gradient,
        workspace=2 * 8 * variables,
        x="input0",
        dy="output_gradient",
        weights="weights",
        weights_gradient="weights_gradient",
        bias_gradient="bias_gradient" if "bias_gradient" in request.writes else None,
        dx="input_gradient" if "input_gradient" in request.writes else None,
        sums="workspace",
        sizes=sizes,
        steps=steps,
        variables=variables,
    )


def variable_axes(x: Tensor, variable: Shape, axis: int) -> tuple[dict[str, int], dict[str, int]]:
    """The sizes of four axes, and the distances between the variables along each, as fields of `AXES`."""
    distances = {axis + d: math.prod(variable[d + 1 :]) for d in range(len(variable))}
    axes: list[Axis] = []
    for dimension in axes_in_memory(x):
        size, distance = x.shape[dimension], distances.get(dimension, 0)
        if size == 1:
            continue
        if axes and axes[-1][1] == size * distance:  # the two axes form one longer axis
            axes[-1] = (axes[-1][0] * size, distance)
        else:
            axes.append((size, distance))
    axes = [(1, 0)] * (4 - len(axes)) + axes
    sizes, between = (dict(zip(AXES.names, numbers, strict=True)) for numbers in zip(*axes, strict=True))
    return sizes, between


@inlined
def _scale(y: Any, weights: Any, distance: int, count: int) -> None:
    """y ← weights · y, for a row. Distances of 1 and 0 have separate loops, which are compiled to vector code."""
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


@native_pass(Arguments(x=Address, y=Address, weights=Address, bias=Address, sizes=AXES, steps=AXES))
def scale_rows(block: Any) -> int:
    """y = weights · x + bias. steps: distances between variables."""
    sizes, steps, row = block.sizes, block.steps, 0
    for i in range(sizes.outer):
        for j in range(sizes.middle):
            for k in range(sizes.inner):
                variable = 4 * (i * steps.outer + j * steps.middle + k * steps.inner)
                y = float32_at(block.y + 4 * row)
                if block.x != block.y:  # a row stays in the cache, and in place there is no overlap to check
                    _copy(float32_at(block.x + 4 * row), y, sizes.length)
                _scale(y, float32_at(block.weights + variable), steps.length, sizes.length)
                if block.bias != 0:
                    _shift(y, float32_at(block.bias + variable), steps.length, sizes.length)
                row += sizes.length
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


GRADIENT = Arguments(
    x=Address,
    dy=Address,
    weights=Address,
    weights_gradient=Address,
    bias_gradient=Address,
    dx=Address,
    sums=Address,
    sizes=AXES,
    steps=AXES,
    variables=int,
)
"""sums: workspace for two float64 numbers of each variable. bias_gradient, dx: may be 0."""


@native_pass(GRADIENT)
def scale_rows_gradient(block: Any) -> int:
    sizes, steps = block.sizes, block.steps
    sums, count, row = float64_at(block.sums), block.variables, 0
    for index in range(2 * count):
        sums[index] = 0.0
    for i in range(sizes.outer):
        for j in range(sizes.middle):
            for k in range(sizes.inner):
                variable = i * steps.outer + j * steps.middle + k * steps.inner
                x, dy = float32_at(block.x + 4 * row), float32_at(block.dy + 4 * row)
                _add_products(float64_at(block.sums + 8 * variable), x, dy, steps.length, sizes.length)
                if block.bias_gradient != 0:
                    _add(float64_at(block.sums + 8 * (count + variable)), dy, steps.length, sizes.length)
                if block.dx != 0:
                    dx = float32_at(block.dx + 4 * row)
                    if block.dx != block.dy:
                        _copy(dy, dx, sizes.length)
                    _scale(dx, float32_at(block.weights + 4 * variable), steps.length, sizes.length)
                row += sizes.length
    for index in range(count):
        float32_at(block.weights_gradient)[index] = np.float32(sums[index])
        if block.bias_gradient != 0:
            float32_at(block.bias_gradient)[index] = np.float32(sums[count + index])
    return 0
