"""Activation functions, in place where the plan allows; derivatives come from the output."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.compiled import float32_at, float64_at, inlined, int64_at, native, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ActivationBackward, ActivationForward


def clips(request: ActivationForward) -> bool:
    """Whether it is min(max(x, 0), ceiling), of which oneDNN makes 0 where x is NaN."""
    return request.mode == "clipped" or (request.mode == "relu" and request.negative_slope == 0)


@PASSES.kernel(ActivationForward, lambda request: clips(request) and alike(request.x, request.y))
def clipping(request: ActivationForward) -> PreparedKernel:
    return prepared_pass(request, clip, request.x.elements, request.ceiling if request.mode == "clipped" else math.inf)


@PASSES.kernel(ActivationForward, lambda request: not clips(request) and alike(request.x, request.y))
def forward(request: ActivationForward) -> PreparedKernel:
    slope = float(request.negative_slope)
    return prepared_pass(request, FORWARD[request.mode], request.x.elements, slope)


@PASSES.kernel(ActivationBackward, lambda request: alike(request.y, request.dy, request.dx))
def backward(request: ActivationBackward) -> PreparedKernel:
    number = float(request.ceiling if request.mode == "clipped" else request.negative_slope)
    return prepared_pass(request, BACKWARD[request.mode], request.y.elements, number)


@inlined
def _clipped(x: Any, ceiling: Any) -> Any:
    positive = np.float32(0) if x < 0 else x
    return ceiling if positive > ceiling else positive


@native
def clip(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, their elements, ceiling: y = min(max(x, 0), ceiling), NaN kept."""
    block, ceiling = int64_at(arguments), np.float32(float64_at(arguments)[3])
    x, y, count = float32_at(block[0]), float32_at(block[1]), block[2]
    if block[0] == block[1]:  # with one name for both, the compiler has no overlap to fear
        for i in range(count):
            y[i] = _clipped(y[i], ceiling)
    else:
        for i in range(count):
            y[i] = _clipped(x[i], ceiling)
    return 0


def add_relu(steps: Steps, place: Place, elements: int) -> None:
    """Append: what lies in a place becomes max(…, 0)."""
    steps.add_pass("relu", clip, (place, place), elements, math.inf)


@native
def leaky_relu(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, their elements, slope: y = max(x, 0) + slope · min(x, 0)."""
    block, slope = int64_at(arguments), np.float32(float64_at(arguments)[3])
    x, y = float32_at(block[0]), float32_at(block[1])
    for i in range(block[2]):
        y[i] = x[i] * slope if x[i] < 0 else x[i]
    return 0


@native
def sigmoid(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, their elements: y = 1 / (1 + exp(−x)), by an exponential that does not overflow."""
    block = int64_at(arguments)
    x, y = float32_at(block[0]), float32_at(block[1])
    for i in range(block[2]):
        power = math.exp(-abs(np.float64(x[i])))
        y[i] = np.float32((power if x[i] < 0 else 1.0) / (1.0 + power))
    return 0


@native
def hyperbolic_tangent(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, their elements: y = tanh(x)."""
    block = int64_at(arguments)
    x, y = float32_at(block[0]), float32_at(block[1])
    for i in range(block[2]):
        y[i] = np.float32(math.tanh(np.float64(x[i])))
    return 0


@native
def leaky_relu_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: y, dy, dx, their elements, slope: dx = dy, or slope · dy where y ≤ 0."""
    block, slope = int64_at(arguments), np.float32(float64_at(arguments)[4])
    y, dy, dx = float32_at(block[0]), float32_at(block[1]), float32_at(block[2])
    if block[1] == block[2]:  # with one name for both, the compiler has no overlap to fear
        for i in range(block[3]):
            dx[i] = dx[i] * (slope if y[i] <= 0 else np.float32(1))
    else:
        for i in range(block[3]):
            dx[i] = dy[i] * (slope if y[i] <= 0 else np.float32(1))
    return 0


@native
def clip_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: y, dy, dx, their elements, ceiling: dx = dy where 0 < y < ceiling, else 0."""
    block, ceiling = int64_at(arguments), np.float32(float64_at(arguments)[4])
    y, dy, dx = float32_at(block[0]), float32_at(block[1]), float32_at(block[2])
    for i in range(block[3]):
        dx[i] = dy[i] * (np.float32(1) if 0 < y[i] < ceiling else np.float32(0))
    return 0


@native
def sigmoid_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: y, dy, dx, their elements: dx = dy · y · (1 − y)."""
    block = int64_at(arguments)
    y, dy, dx = float32_at(block[0]), float32_at(block[1]), float32_at(block[2])
    for i in range(block[3]):
        dx[i] = dy[i] * (y[i] * (np.float32(1) - y[i]))
    return 0


@native
def tangent_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: y, dy, dx, their elements: dx = dy · (1 − y²)."""
    block = int64_at(arguments)
    y, dy, dx = float32_at(block[0]), float32_at(block[1]), float32_at(block[2])
    for i in range(block[3]):
        dx[i] = dy[i] * (np.float32(1) - y[i] * y[i])
    return 0


FORWARD = {"relu": leaky_relu, "sigmoid": sigmoid, "tanh": hyperbolic_tangent}
BACKWARD = {
    "relu": leaky_relu_gradient,
    "clipped": clip_gradient,
    "sigmoid": sigmoid_gradient,
    "tanh": tangent_gradient,
}
