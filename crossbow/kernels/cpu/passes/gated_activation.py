"""Activation functions that multiply their input by a gate, in place where the plan allows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, inlined, native_pass, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.reference.gated_activation import CUBIC, FAR
from crossbow.kernels.requests import GatedActivationBackward, GatedActivationForward

FORWARD = Arguments(x=Address, y=Address, length=int)
BACKWARD = Arguments(x=Address, dy=Address, dx=Address, length=int)

NORMAL = 1 / math.sqrt(2 * math.pi)
"""Density of the standard normal distribution at 0."""
TANH_FACTOR = math.sqrt(8 / math.pi)


@PASSES.kernel(GatedActivationForward, lambda request: alike(request.x, request.y))
def forward(request: GatedActivationForward) -> PreparedKernel:
    return prepared_pass(request, VALUES[request.gate], x="input0", y="output", length=request.x.elements)


@PASSES.kernel(GatedActivationBackward, lambda request: alike(request.x, request.dy, request.dx))
def backward(request: GatedActivationBackward) -> PreparedKernel:
    places: dict[str, Any] = {"x": "input0", "dy": "output_gradient", "dx": "input_gradient"}
    return prepared_pass(request, GRADIENTS[request.gate], **places, length=request.x.elements)


@inlined
def _near(x: Any) -> Any:
    """x in float64 within ±FAR, NaN kept."""
    wide = np.float64(x)
    return -FAR if wide < -FAR else FAR if wide > FAR else wide


@inlined
def _sigmoid(x: Any) -> Any:
    power = math.exp(-abs(x))
    return (power if x < 0 else 1.0) / (1.0 + power)


@native_pass(FORWARD)
def gelu(block: Any) -> int:
    """y = x · erfc(−x / √2) / 2."""
    x, y = float32_at(block.x), float32_at(block.y)
    for i in range(block.length):
        y[i] = np.float32(np.float64(x[i]) * (0.5 * math.erfc(-_near(x[i]) * math.sqrt(0.5))))
    return 0


@native_pass(BACKWARD)
def gelu_gradient(block: Any) -> int:
    """dx = dy · (Φ(x) + x · φ(x))."""
    x, dy, dx = float32_at(block.x), float32_at(block.dy), float32_at(block.dx)
    for i in range(block.length):
        near = _near(x[i])
        slope = 0.5 * math.erfc(-near * math.sqrt(0.5)) + np.float64(x[i]) * (NORMAL * math.exp(-0.5 * near * near))
        dx[i] = dy[i] * np.float32(slope)
    return 0


@native_pass(FORWARD)
def gelu_tanh(block: Any) -> int:
    """y = x · (1 + tanh u) / 2, which is the sigmoid of 2 u; u = √(2/π) · (x + 0.044715 · x³)."""
    x, y = float32_at(block.x), float32_at(block.y)
    for i in range(block.length):
        near = _near(x[i])
        y[i] = np.float32(np.float64(x[i]) * _sigmoid(TANH_FACTOR * (near + CUBIC * near * near * near)))
    return 0


@native_pass(BACKWARD)
def gelu_tanh_gradient(block: Any) -> int:
    """dx = dy · (s + x · s · (1 − s) · 2 u'), where s is the sigmoid of 2 u."""
    x, dy, dx = float32_at(block.x), float32_at(block.dy), float32_at(block.dx)
    for i in range(block.length):
        near = _near(x[i])
        gate = _sigmoid(TANH_FACTOR * (near + CUBIC * near * near * near))
        inner = TANH_FACTOR * (1.0 + 3.0 * CUBIC * near * near)
        dx[i] = dy[i] * np.float32(gate + near * gate * (1.0 - gate) * inner)
    return 0


@native_pass(FORWARD)
def silu(block: Any) -> int:
    """y = x · sigmoid(x)."""
    x, y = float32_at(block.x), float32_at(block.y)
    for i in range(block.length):
        wide = np.float64(x[i])
        y[i] = np.float32(wide * _sigmoid(wide))
    return 0


@native_pass(BACKWARD)
def silu_gradient(block: Any) -> int:
    """dx = dy · s · (1 + x · (1 − s)), where s is the sigmoid of x."""
    x, dy, dx = float32_at(block.x), float32_at(block.dy), float32_at(block.dx)
    for i in range(block.length):
        wide = np.float64(x[i])
        gate = _sigmoid(wide)
        dx[i] = dy[i] * np.float32(gate * (1.0 + wide * (1.0 - gate)))
    return 0


@native_pass(FORWARD)
def hard_swish(block: Any) -> int:
    """y = x · min(max((x + 3) / 6, 0), 1)."""
    x, y = float32_at(block.x), float32_at(block.y)
    for i in range(block.length):
        line = (x[i] + np.float32(3)) / np.float32(6)
        y[i] = x[i] * (np.float32(0) if line < 0 else np.float32(1) if line > 1 else line)
    return 0


@native_pass(BACKWARD)
def hard_swish_gradient(block: Any) -> int:
    """dx = 0 for x ≤ −3, dy for x ≥ 3, else dy · (x / 3 + ½)."""
    x, dy, dx = float32_at(block.x), float32_at(block.dy), float32_at(block.dx)
    for i in range(block.length):
        line = x[i] / np.float32(3) + np.float32(0.5)
        dx[i] = dy[i] * (np.float32(0) if x[i] <= -3 else np.float32(1) if x[i] >= 3 else line)
    return 0


VALUES = {"gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu, "hard_swish": hard_swish}
GRADIENTS = {
    "gelu": gelu_gradient,
    "gelu_tanh": gelu_tanh_gradient,
    "silu": silu_gradient,
    "hard_swish": hard_swish_gradient,
}
