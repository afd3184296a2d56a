"""Normalisation over some axes of every example."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.reference.scaling import along, other_axes
from crossbow.kernels.requests import LayerNormBackward, LayerNormForward


@computes(LayerNormForward)
def forward(
    *, input0: Floats, weights: Floats, output: Floats, axis: int, epsilon: float, bias: Floats | None = None
) -> None:
    """y = weights · (x − mean) / √(variance + ε) (+ bias)."""
    normalised, _ = _normalised(input0, _own_axes(weights, axis), epsilon)
    y = normalised * along(weights, input0, axis)
    output[...] = y if bias is None else y + along(bias, input0, axis)


@computes(LayerNormBackward)
def backward(
    *,
    input0: Floats,
    output_gradient: Floats,
    weights: Floats,
    weights_gradient: Floats,
    axis: int,
    epsilon: float,
    bias_gradient: Floats | None = None,
    input_gradient: Floats | None = None,
) -> None:
    """dweights = Σ dy · x̂, dbias = Σ dy, dx = (g − mean g − x̂ · mean(g · x̂)) / √(variance + ε), g = weights · dy."""
    own = _own_axes(weights, axis)
    others = other_axes(input0, axis, weights.ndim)
    normalised, deviation = _normalised(input0, own, epsilon)
    weights_gradient[...] = np.sum(output_gradient * normalised, axis=others)
    if bias_gradient is not None:
        bias_gradient[...] = np.sum(output_gradient, axis=others, dtype=np.float64)
    if input_gradient is not None:  # last, because it may share the output gradient's memory
        g = output_gradient * along(weights, input0, axis).astype(np.float64)
        common, slope = g.mean(axis=own, keepdims=True), (g * normalised).mean(axis=own, keepdims=True)
        input_gradient[...] = (g - common - normalised * slope) / deviation


def _own_axes(weights: Floats, axis: int) -> tuple[int, ...]:
    return tuple(range(axis, axis + weights.ndim))


def _normalised(x: Floats, axes: tuple[int, ...], epsilon: float) -> tuple[Floats, Floats]:
    """The normalised input and its standard deviation, in float64. The mean is subtracted before squares are summed."""
    distances = x - x.mean(axis=axes, keepdims=True, dtype=np.float64)
    deviation = np.sqrt((distances * distances).mean(axis=axes, keepdims=True) + epsilon)
    return distances / deviation, deviation
