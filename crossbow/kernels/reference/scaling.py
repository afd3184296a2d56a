"""Factors and offsets along some axes of a tensor."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import (
    BiasBackward,
    BiasForward,
    ScalingBackward,
    ScalingForward,
    SlopeBackward,
    SlopeForward,
)


@computes(ScalingForward)
def forward(*, input0: Floats, weights: Floats, output: Floats, axis: int, bias: Floats | None = None) -> None:
    """y = weights · x (+ bias)."""
    np.multiply(input0, along(weights, input0, axis), out=output)
    if bias is not None:
        output += along(bias, input0, axis)


@computes(ScalingBackward)
def backward(
    *,
    input0: Floats,
    output_gradient: Floats,
    weights: Floats,
    weights_gradient: Floats,
    axis: int,
    bias_gradient: Floats | None = None,
    input_gradient: Floats | None = None,
) -> None:
    """dweights = Σ dy · x, dbias = Σ dy, dx = weights · dy."""
    others = other_axes(input0, axis, weights.ndim)
    weights_gradient[...] = np.sum(output_gradient * input0, axis=others, dtype=np.float64)
    if bias_gradient is not None:
        bias_gradient[...] = np.sum(output_gradient, axis=others, dtype=np.float64)
    if input_gradient is not None:  # last, because it may share the output gradient's memory
        np.multiply(output_gradient, along(weights, input0, axis), out=input_gradient)


@computes(BiasForward)
def add_bias(*, output: Floats, bias: Floats) -> None:
    """y ← y + bias."""
    output += along(bias, output)


@computes(BiasBackward)
def bias_gradient(*, output_gradient: Floats, bias_gradient: Floats) -> None:
    """dbias = Σ dy."""
    bias_gradient[...] = np.sum(output_gradient, axis=other_axes(output_gradient), dtype=np.float64)


@computes(SlopeForward)
def bend(*, input0: Floats, weights: Floats, output: Floats) -> None:
    """y = x where x > 0, and weights · x elsewhere."""
    output[...] = np.where(input0 > 0, input0, along(weights, input0) * input0)


@computes(SlopeBackward)
def slope_gradients(
    *,
    input0: Floats,
    output_gradient: Floats,
    weights: Floats,
    weights_gradient: Floats,
    input_gradient: Floats | None = None,
) -> None:
    """dweights = Σ dy · min(x, 0), dx = dy where x > 0, and weights · dy elsewhere."""
    products = np.where(input0 > 0, 0, output_gradient * input0)
    others = tuple(axis for axis in range(input0.ndim) if axis != 1 or weights.size == 1)
    weights_gradient.reshape(-1)[...] = np.sum(products, axis=others, dtype=np.float64)
    if input_gradient is not None:
        slopes = along(weights, input0)
        input_gradient[...] = np.where(input0 > 0, output_gradient, slopes * output_gradient)


def along(variable: Floats, x: Floats, axis: int = 1) -> Floats:
    """The variable, which lies along the axes of x from `axis` on, in a shape that broadcasts over x."""
    return variable.reshape(*variable.shape, *[1] * (x.ndim - axis - variable.ndim))


def other_axes(x: Floats, axis: int = 1, number: int = 1) -> tuple[int, ...]:
    """All axes of x but a number of them from `axis` on."""
    return (*range(axis), *range(axis + number, x.ndim))
