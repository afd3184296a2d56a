"""Activation functions, in place where the plan allows. Derivatives are computed from the output."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import NativeFunction, float32_at, inlined, native_pass, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ActivationBackward, ActivationForward

ACTIVATION = Arguments(x=Address, y=Address, length=int, parameter=float)
"""parameter: the ceiling of a clipped ReLU, or the slope of a leaky one."""
ACTIVATION_GRADIENT = Arguments(y=Address, dy=Address, dx=Address, length=int, parameter=float)


def clips(request: ActivationForward) -> bool:
    """Whether it is min(max(x, 0), ceiling), for which oneDNN returns 0 if x is NaN."""
    return request.mode == "clipped" or (request.mode == "relu" and request.negative_slope == 0)


@PASSES.kernel(ActivationForward, lambda request: clips(request) and alike(request.x, request.y))
def clipping(request: ActivationForward) -> PreparedKernel:
    ceiling = request.ceiling if request.mode == "clipped" else math.inf
    return _forward(request, clip, ceiling)


@PASSES.kernel(ActivationForward, lambda request: not clips(request) and alike(request.x, request.y))
def forward(request: ActivationForward) -> PreparedKernel:
    return _forward(request, FORWARD[request.mode], request.negative_slope)


def _forward(request: ActivationForward, function: NativeFunction, parameter: float) -> PreparedKernel:
    return prepared_pass(
        request, function, x="input0", y="output", length=request.x.elements, parameter=float(parameter)
    )


@PASSES.kernel(ActivationBackward, lambda request: alike(request.y, request.dy, request.dx))
def backward(request: ActivationBackward) -> PreparedKernel:
    number = float(request.ceiling if request.mode == "clipped" else request.negative_slope)
    places: dict[str, Any] = {"y": "output", "dy": "output_gradient", "dx": "input_gradient"}
    return prepared_pass(request, BACKWARD[request.mode], **places, length=request.y.elements, parameter=number)


@inlined
def _clipped(x: Any, ceiling: Any) -> Any:
    positive = np.float32(0) if x < 0 else x
    return ceiling if positive > ceiling else positive


@native_pass(ACTIVATION)
def clip(block: Any) -> int:
    """y = min(max(x, 0), ceiling), NaN kept."""
    x, y, count, ceiling = float32_at(block.x), float32_at(block.y), block.length, np.float32(block.parameter)
    if block.x == block.y:  # with one name for both, the compiler need not check for overlap
        for i in range(count):
            y[i] = _clipped(y[i], ceiling)
    else:
        for i in range(count):
            y[i] = _clipped(x[i], ceiling)
    return 0


def add_relu(steps: Steps, place: Place, elements: int) -> None:
    """Append a ReLU in place."""
    steps.add_pass("relu", clip, x=place, y=place, length=elements, parameter=math.inf)


@native_pass(ACTIVATION)
def leaky_relu(block: Any) -> int:
    """y = max(x, 0) + slope · min(x, 0)."""
    x, y, slope = float32_at(block.x), float32_at(block.y), np.float32(block.parameter)
    for i in range(block.length):
        y[i] = x[i] * slope if x[i] < 0 else x[i]
    return 0


@native_pass(ACTIVATION)
def sigmoid(block: Any) -> int:
    """y = 1 / (1 + exp(−x)), by an exponential that does not overflow."""
    x, y = float32_at(block.x), float32_at(block.y)
    for i in range(block.length):
        power = math.exp(-abs(np.float64(x[i])))
        y[i] = np.float32((power if x[i] < 0 else 1.0) / (1.0 + power))
    return 0


@native_pass(ACTIVATION)
def hyperbolic_tangent(block: Any) -> int:
    """y = tanh(x)."""
    x, y = float32_at(block.x), float32_at(block.y)
    for i in range(block.length):
        y[i] = np.float32(math.tanh(np.float64(x[i])))
    return 0


@native_pass(ACTIVATION_GRADIENT)
def leaky_relu_gradient(block: Any) -> int:
    """dx = dy, or slope · dy where y ≤ 0."""
    y, dy, dx, slope = float32_at(block.y), float32_at(block.dy), float32_at(block.dx), np.float32(block.parameter)
    if block.dy == block.dx:  # with one name for both, the compiler need not check for overlap
        for i in range(block.length):
            dx[i] = dx[i] * (slope if y[i] <= 0 else np.float32(1))
    else:
        for i in range(block.length):
            dx[i] = dy[i] * (slope if y[i] <= 0 else np.float32(1))
    return 0


@native_pass(ACTIVATION_GRADIENT)
def clip_gradient(block: Any) -> int:
    """dx = dy where 0 < y < ceiling, else 0."""
    y, dy, dx, ceiling = float32_at(block.y), float32_at(block.dy), float32_at(block.dx), np.float32(block.parameter)
    for i in range(block.length):
        dx[i] = dy[i] * (np.float32(1) if 0 < y[i] < ceiling else np.float32(0))
    return 0


@native_pass(ACTIVATION_GRADIENT)
def sigmoid_gradient(block: Any) -> int:
    """dx = dy · y · (1 − y)."""
    y, dy, dx = float32_at(block.y), float32_at(block.dy), float32_at(block.dx)
    for i in range(block.length):
        dx[i] = dy[i] * (y[i] * (np.float32(1) - y[i]))
    return 0


@native_pass(ACTIVATION_GRADIENT)
def tangent_gradient(block: Any) -> int:
    """dx = dy · (1 − y²)."""
    y, dy, dx = float32_at(block.y), float32_at(block.dy), float32_at(block.dx)
    for i in range(block.length):
        dx[i] = dy[i] * (np.float32(1) - y[i] * y[i])
    return 0


FORWARD = {"relu": leaky_relu, "sigmoid": sigmoid, "tanh": hyperbolic_tangent}
BACKWARD = {
    "relu": leaky_relu_gradient,
    "clipped": clip_gradient,
    "sigmoid": sigmoid_gradient,
    "tanh": tangent_gradient,
}
