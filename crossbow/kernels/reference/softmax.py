"""Softmax and its gradient."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import SoftmaxBackward, SoftmaxForward


@computes(SoftmaxForward)
def forward(*, input0: Floats, output: Floats, axis: int) -> None:
    """y = exp(x − max x) / Σ exp(x − max x)."""
    np.subtract(input0, input0.max(axis=axis, keepdims=True, initial=-np.inf), out=output)
    np.exp(output, out=output)
    output /= output.sum(axis=axis, keepdims=True)


@computes(SoftmaxBackward)
def backward(*, output: Floats, output_gradient: Floats, input_gradient: Floats, axis: int) -> None:
    """dx = y · (dy − Σ dy · y)."""
    mean = (output_gradient * output).sum(axis=axis, keepdims=True)
    np.subtract(output_gradient, mean, out=input_gradient)
    input_gradient *= output
