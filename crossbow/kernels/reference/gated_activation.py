"""Activation functions that multiply their input by a gate, and their derivatives from their inputs."""

from __future__ import annotations

import math

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import GatedActivationBackward, GatedActivationForward

FAR = 100.0
"""Beyond ±FAR, the gates of GELU are 0 or 1 in every type, and powers of x might overflow."""
CUBIC = 0.044715
"""Factor of x³ in the approximation of GELU."""

_erfc = np.frompyfunc(math.erfc, 1, 1)


@computes(GatedActivationForward)
def forward(*, input0: Floats, output: Floats, gate: str) -> None:
    """y = x · gate(x)."""
    np.multiply(input0, _gate_and_slope(input0, gate)[0], out=output)


@computes(GatedActivationBackward)
def backward(*, input0: Floats, output_gradient: Floats, input_gradient: Floats, gate: str) -> None:
    """dx = dy · (gate(x) + x · gate'(x))."""
    if gate == "hard_swish":
        derivative = np.where(np.abs(input0) < 3, input0 / 3 + 0.5, input0 > 0).astype(input0.dtype)
        derivative[np.isnan(input0)] = np.nan
    else:
        value, slope = _gate_and_slope(input0, gate)
        derivative = value + input0 * slope
    np.multiply(output_gradient, derivative, out=input_gradient)


def _gate_and_slope(x: Floats, gate: str) -> tuple[Floats, Floats]:
    """gate(x) and gate'(x), in the type of x. HardSwish has the derivative only between its kinks."""
    if gate == "silu":
        return _sigmoid_and_slope(x)
    if gate == "hard_swish":
        value = np.clip((x + 3) / 6, 0, 1)
        slope = np.full_like(x, 1 / 6)
    else:
        near = np.clip(x, -FAR, FAR)
        if gate == "gelu":  # by erfc, which is as exact for negative x as for positive x
            value = np.asarray(_erfc(-near / math.sqrt(2)), x.dtype) / 2
            slope = np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
        else:  # (1 + tanh u) / 2 is the sigmoid of 2 u
            factor = math.sqrt(8 / math.pi)
            value, outer = _sigmoid_and_slope(factor * (near + CUBIC * near**3))
            slope = outer * factor * (1 + 3 * CUBIC * near * near)
    return value.astype(x.dtype), slope.astype(x.dtype)


def _sigmoid_and_slope(x: Floats) -> tuple[Floats, Floats]:
    small = np.exp(-np.abs(x))  # cannot overflow
    return np.where(x >= 0, 1, small) / (1 + small), small / (1 + small) ** 2
