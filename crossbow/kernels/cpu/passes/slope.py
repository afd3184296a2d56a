"""Trained slopes of a rectifier: one pass over memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, float64_at, inlined, native_pass, prepared_pass
from crossbow.kernels.cpu.passes.scaling import AXES, variable_axes
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SlopeBackward, SlopeForward


@PASSES.kernel(SlopeForward, lambda request: alike(request.x, request.y))
def forward(request: SlopeForward) -> PreparedKernel:
    sizes, steps = variable_axes(request.x, request.weights.shape, 1)
    return prepared_pass(request, bend_rows, x="input0", y="output", weights="weights", sizes=sizes, steps=steps)


@PASSES.kernel(SlopeBackward, lambda request: alike(request.x, request.dy, request.dx or request.x))
def backward(request: SlopeBackward) -> PreparedKernel:
    sizes, steps = variable_axes(request.x, request.weights.shape, 1)
    variables = math.prod(request.weights.shape)
    return prepared_pass(
        request,
        bend_rows_gradient,
        workspace=8 * variables,
        x="input0",
        dy="output_gradient",
        weights="weights",
        weights_gradient="weights_gradient",
        dx="input_gradient" if "input_gradient" in request.writes else None,
        sums="workspace",
        sizes=sizes,
        steps=steps,
        variables=variables,
    )


@inlined
def _bend(target: Any, values: Any, x: Any, weights: Any, own: Any, count: int) -> None:
    """target = values where x > 0, and weights · values elsewhere, for a row. own: whether each position has its own
    weight; otherwise all have the first one. Each case has a separate loop, which is compiled to vector code."""
    if own:
        for i in range(count):
            target[i] = values[i] if x[i] > 0 else weights[i] * values[i]
    else:
        slope = weights[0]
        for i in range(count):
            target[i] = values[i] if x[i] > 0 else slope * values[i]


@native_pass(Arguments(x=Address, y=Address, weights=Address, sizes=AXES, steps=AXES))
def bend_rows(block: Any) -> int:
    """steps: distances between variables, which are 0 or 1 within a row."""
    sizes, steps, row = block.sizes, block.steps, 0
    for i in range(sizes.outer):
        for j in range(sizes.middle):
            for k in range(sizes.inner):
                variable = 4 * (i * steps.outer + j * steps.middle + k * steps.inner)
                x, y = float32_at(block.x + 4 * row), float32_at(block.y + 4 * row)
                _bend(y, x, x, float32_at(block.weights + variable), steps.length != 0, sizes.length)
                row += sizes.length
    return 0


@inlined
def _add_products(total: Any, x: Any, dy: Any, own: Any, count: int) -> None:
    """total += dy · min(x, 0), for a row, in float64: a channel may have many elements. NaN in x stays NaN. own: as in
    `_bend`."""
    row = 0.0
    for i in range(count):
        product = 0.0 if x[i] > 0 else np.float64(x[i]) * np.float64(dy[i])
        if own:
            total[i] += product
        else:
            row += product
    if not own:
        total[0] += row


@native_pass(
    Arguments(
        x=Address,
        dy=Address,
        weights=Address,
        weights_gradient=Address,
        dx=Address,
        sums=Address,
        sizes=AXES,
        steps=AXES,
        variables=int,
    )
)
def bend_rows_gradient(block: Any) -> int:
    """sums: workspace for a float64 number of each variable. dx: may be 0."""
    sizes, steps = block.sizes, block.steps
    sums, row = float64_at(block.sums), 0
    for index in range(block.variables):
        sums[index] = 0.0
    for i in range(sizes.outer):
        for j in range(sizes.middle):
            for k in range(sizes.inner):
                variable = i * steps.outer + j * steps.middle + k * steps.inner
                x, dy = float32_at(block.x + 4 * row), float32_at(block.dy + 4 * row)
                _add_products(float64_at(block.sums + 8 * variable), x, dy, steps.length != 0, sizes.length)
                if block.dx != 0:
                    dx, weights = float32_at(block.dx + 4 * row), float32_at(block.weights + 4 * variable)
                    _bend(dx, dy, x, weights, steps.length != 0, sizes.length)
                row += sizes.length
    for index in range(block.variables):
        float32_at(block.weights_gradient)[index] = np.float32(sums[index])
    return 0
