"""Layer normalisation and its gradients, by all threads of a learner. Sums are in float64.

A *line* is a group of numbers that are normalised together: `length` numbers at distances of `inner`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, float64_at, in_any_order, inlined, native_pass
from crossbow.kernels.cpu.passes.team import TEAM, team_barrier, team_size, team_thread, threads_for
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LayerNormBackward, LayerNormForward
from crossbow.kernels.strides import strides

FORWARD = Arguments(
    team=TEAM, x=Address, y=Address, weights=Address, bias=Address, lines=int, length=int, inner=int, epsilon=float
)
BACKWARD = Arguments(
    team=TEAM,
    x=Address,
    dy=Address,
    weights=Address,
    weights_gradient=Address,
    bias_gradient=Address,
    dx=Address,
    sums=Address,
    lines=int,
    length=int,
    inner=int,
    epsilon=float,
)
"""bias_gradient, dx: may be 0. sums: workspace for two float64 numbers of each variable, for each thread."""


def _spacing(request: LayerNormForward | LayerNormBackward) -> int | None:
    """The distance between neighbours on a line; None if it varies."""
    x, first = request.x, request.axis
    own = range(first, first + len(request.weights.shape))
    axes = [(x.shape[axis], strides(x)[axis]) for axis in own if x.shape[axis] > 1]
    joined = all(step == size * inner for (_, step), (size, inner) in pairwise(axes))
    return (axes[-1][1] if axes else 1) if joined else None


@PASSES.kernel(LayerNormForward, lambda request: alike(request.x, request.y) and _spacing(request) is not None)
def forward(request: LayerNormForward) -> PreparedKernel:
    steps = Steps(request)
    steps.add_team_pass(
        "layer norm",
        normalise_lines,
        threads_for(request.x.nbytes),
        x="input0",
        y="output",
        weights="weights",
        bias=None if request.bias is None else "bias",
        epsilon=float(request.epsilon),
        **_lines(request),
    )
    return steps.prepared()


@PASSES.kernel(
    LayerNormBackward,
    lambda request: alike(request.x, request.dy, request.dx or request.x) and _spacing(request) is not None,
)
def backward(request: LayerNormBackward) -> PreparedKernel:
    steps, threads, division = Steps(request), threads_for(request.x.nbytes), _lines(request)
    steps.add_team_pass(
        "layer norm gradient",
        normalise_lines_gradient,
        threads,
        x="input0",
        dy="output_gradient",
        weights="weights",
        weights_gradient="weights_gradient",
        bias_gradient=None if request.bias is None else "bias_gradient",
        dx=None if request.dx is None else "input_gradient",
        sums=steps.reserve(2 * 8 * division["length"] * threads),
        epsilon=float(request.epsilon),
        **division,
    )
    return steps.prepared()


def _lines(request: LayerNormForward | LayerNormBackward) -> dict[str, int]:
    length, inner = math.prod(request.weights.shape), _spacing(request)
    assert inner is not None
    return {"lines": request.x.elements // length, "length": length, "inner": inner}


@inlined
def _start(line: int, length: int, inner: int) -> Any:
    """Distance in bytes of a line's first number from the tensor's first number."""
    return 4 * (line // inner * length * inner + line % inner)


@in_any_order
def _mean(x: Any, count: int, step: int) -> Any:
    total = 0.0
    for i in range(count):
        total += np.float64(x[i * step])
    return total / count


@in_any_order
def _inverse_deviation(x: Any, mean: float, count: int, step: int, epsilon: float) -> Any:
    """1 / √(variance + ε), from squares of distances from the mean."""
    total = 0.0
    for i in range(count):
        distance = np.float64(x[i * step]) - mean
        total += distance * distance
    return 1.0 / math.sqrt(total / count + epsilon)


@inlined
def _normalise(x: Any, y: Any, weights: Any, bias: Any, count: int, step: int, epsilon: float, has_bias: bool) -> None:
    """y = weights · (x − mean) / √(variance + ε) (+ bias), for a line."""
    mean = _mean(x, count, step)
    inverse = _inverse_deviation(x, mean, count, step, epsilon)
    for i in range(count):
        value = (np.float64(x[i * step]) - mean) * inverse * np.float64(weights[i])
        y[i * step] = np.float32(value + np.float64(bias[i]) if has_bias else value)


@native_pass(FORWARD)
def normalise_lines(block: Any) -> int:
    """Contiguous lines have a separate loop, which is compiled to vector code."""
    length, inner, thread, threads = block.length, block.inner, team_thread(block.team), team_size(block.team)
    weights, bias, epsilon, has_bias = float32_at(block.weights), float32_at(block.bias), block.epsilon, block.bias != 0
    for line in range(block.lines * thread // threads, block.lines * (thread + 1) // threads):
        start = _start(line, length, inner)
        x, y = float32_at(block.x + start), float32_at(block.y + start)
        if inner == 1:
            _normalise(x, y, weights, bias, length, 1, epsilon, has_bias)
        else:
            _normalise(x, y, weights, bias, length, inner, epsilon, has_bias)
    return 0


@in_any_order
def _means_of_products(x: Any, dy: Any, weights: Any, mean: float, inverse: float, count: int, step: int) -> Any:
    """The means of g = weights · dy and of g · x̂."""
    common, slope = 0.0, 0.0
    for i in range(count):
        gradient = np.float64(dy[i * step]) * np.float64(weights[i])
        common += gradient
        slope += gradient * (np.float64(x[i * step]) - mean)
    return common / count, slope * inverse / count


@inlined
def _gradients(
    x: Any, dy: Any, weights: Any, sums: Any, dx: Any, count: int, step: int, epsilon: float, has_dx: bool
) -> None:
    """Add a line's dy · x̂ and dy to the sums of the variables, and write its dx if it is needed."""
    mean = _mean(x, count, step)
    inverse = _inverse_deviation(x, mean, count, step, epsilon)
    for i in range(count):
        gradient = np.float64(dy[i * step])
        sums[i] += gradient * ((np.float64(x[i * step]) - mean) * inverse)
        sums[count + i] += gradient
    if not has_dx:
        return
    common, slope = _means_of_products(x, dy, weights, mean, inverse, count, step)
    for i in range(count):
        normalised = (np.float64(x[i * step]) - mean) * inverse
        gradient = np.float64(dy[i * step]) * np.float64(weights[i])
        dx[i * step] = np.float32((gradient - common - normalised * slope) * inverse)


@native_pass(BACKWARD)
def normalise_lines_gradient(block: Any) -> int:
    """Compute dx and each thread's sums of its lines; then add up the sums of all threads, where each thread handles
    some variables."""
    length, inner, thread, threads = block.length, block.inner, team_thread(block.team), team_size(block.team)
    weights, own = float32_at(block.weights), float64_at(block.sums + 16 * length * thread)
    for i in range(2 * length):
        own[i] = 0.0
    for line in range(block.lines * thread // threads, block.lines * (thread + 1) // threads):
        start = _start(line, length, inner)
        x, dy, dx = float32_at(block.x + start), float32_at(block.dy + start), float32_at(block.dx + start)
        if inner == 1:
            _gradients(x, dy, weights, own, dx, length, 1, block.epsilon, block.dx != 0)
        else:
            _gradients(x, dy, weights, own, dx, length, inner, block.epsilon, block.dx != 0)
    team_barrier(block.team)
    for i in range(length * thread // threads, length * (thread + 1) // threads):
        of_weights, of_bias = 0.0, 0.0
        for number in range(threads):
            sums = float64_at(block.sums + 16 * length * number)
            of_weights += sums[i]
            of_bias += sums[length + i]
        float32_at(block.weights_gradient)[i] = np.float32(of_weights)
        if block.bias_gradient != 0:
            float32_at(block.bias_gradient)[i] = np.float32(of_bias)
    return 0
