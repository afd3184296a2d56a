"""The logarithm of softmax, and its gradient."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import LogSoftmaxBackward, LogSoftmaxForward


@computes(LogSoftmaxForward)
def forward(*, input0: Floats, output: Floats, axis: int) -> None:
    """y = x − max x − log Σ exp(x − max x)."""
    if output.size == 0:
        return  # an empty sum has no logarithm
    np.subtract(input0, input0.max(axis=axis, keepdims=True), out=output)
    output -= np.log(np.exp(output).sum(axis=axis, keepdims=True))


@computes(LogSoftmaxBackward)
def backward(*, output: Floats, output_gradient: Floats, input_gradient: Floats, axis: int) -> None:
    """dx = dy − exp(y) · Σ dy."""
    total = output_gradient.sum(axis=axis, keepdims=True)
    np.subtract(output_gradient, np.exp(output) * total, out=input_gradient)
