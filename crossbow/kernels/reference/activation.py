"""Activation functions, and their derivatives from their outputs."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import ActivationBackward, ActivationForward


@computes(ActivationForward)
def forward(*, input0: Floats, output: Floats, mode: str, negative_slope: float, ceiling: float) -> None:
    """y = max(x, 0) + negative_slope · min(x, 0); min(max(x, 0), ceiling); tanh(x); or 1 / (1 + exp(−x))."""
    if mode == "relu":
        if negative_slope == 0:
            np.maximum(input0, 0, out=output)
        else:
            np.multiply(input0, np.where(input0 > 0, 1, negative_slope).astype(output.dtype), out=output)
    elif mode == "clipped":
        np.clip(input0, 0, ceiling, out=output)
    elif mode == "tanh":
        np.tanh(input0, out=output)
    else:  # sigmoid, from exp(−|x|), which cannot overflow
        small = np.exp(-np.abs(input0))
        np.divide(np.where(input0 >= 0, 1, small), 1 + small, out=output)


@computes(ActivationBackward)
def backward(
    *,
    output: Floats,
    output_gradient: Floats,
    input_gradient: Floats,
    mode: str,
    negative_slope: float,
    ceiling: float,
) -> None:
    """dx = dy · y', where the derivative y' is known from y; at a kink it is the one of the left or flat side."""
    y, dy = output, output_gradient
    if mode == "relu":
        derivative = np.where(y <= 0, negative_slope, 1)
    elif mode == "clipped":
        derivative = (y > 0) & (y < ceiling)
    elif mode == "tanh":
        derivative = 1 - y * y
    else:
        derivative = y * (1 - y)
    np.multiply(dy, derivative.astype(dy.dtype), out=input_gradient)
