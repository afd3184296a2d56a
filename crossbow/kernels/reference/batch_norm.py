"""Batch normalisation. The channels are axis 1; each is normalised over all other axes."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.reference.scaling import along, other_axes
from crossbow.kernels.requests import BatchNormBackward, BatchNormInference, BatchNormSetting, BatchNormTraining
from crossbow.types import Array


@computes(BatchNormTraining, kept=lambda request: 2 * request.x.shape[1] * request.x.dtype.itemsize)
def training(
    *,
    input0: Floats,
    weights: Floats,
    output: Floats,
    kept: Array,
    running_mean: Floats,
    running_variance: Floats,
    running_mean_next: Floats,
    running_variance_next: Floats,
    setting: BatchNormSetting,
    bias: Floats | None = None,
    count: Floats | None = None,
    count_next: Floats | None = None,
    addend: Floats | None = None,
) -> None:
    """y = weights · (x − μ) / √(σ² + ε) + bias (+ addend), and the running statistics. Keeps μ and 1 / √(σ² + ε)."""
    axes = other_axes(input0)
    values = input0.size // input0.shape[1]
    mean = np.mean(input0, axis=axes, dtype=np.float64)
    variance = np.var(input0, axis=axes, dtype=np.float64)
    saved_mean, saved_inverse = _saved(kept, input0)
    saved_mean[...] = mean
    saved_inverse[...] = 1 / np.sqrt(variance + setting.epsilon)
    _normalise(input0, saved_mean, saved_inverse, weights, bias, output)
    if addend is not None:
        output += addend
    factor = 1 - setting.fraction if setting.fraction is not None else 0.0
    if count is not None and count_next is not None:
        factor = 1 / (1 + count.item())
        count_next[...] = count + 1
    unbiased = variance * (values / max(values - 1, 1))
    running_mean_next[...] = (1 - factor) * running_mean + factor * mean
    running_variance_next[...] = (1 - factor) * running_variance + factor * unbiased


@computes(BatchNormInference, in_place=False)
def inference(
    *,
    input0: Floats,
    weights: Floats,
    output: Floats,
    running_mean: Floats,
    running_variance: Floats,
    setting: BatchNormSetting,
    bias: Floats | None = None,
    addend: Floats | None = None,
) -> None:
    """y = weights · (x − running mean) / √(running variance + ε) + bias (+ addend)."""
    inverse = 1 / np.sqrt(running_variance + setting.epsilon)
    _normalise(input0, running_mean, inverse.astype(output.dtype), weights, bias, output)
    if addend is not None:
        output += addend


@computes(BatchNormBackward, in_place=False)
def backward(
    *,
    input0: Floats,
    output_gradient: Floats,
    weights: Floats,
    kept: Array,
    weights_gradient: Floats,
    setting: BatchNormSetting,
    bias: Floats | None = None,
    bias_gradient: Floats | None = None,
    input_gradient: Floats | None = None,
    output: Floats | None = None,
    addend_gradient: Floats | None = None,
) -> None:
    """dweights = Σ dy · x̂, dbias = Σ dy, dx = weights / σ · (dy − mean(dy) − x̂ · mean(dy · x̂)).

    With a ReLU after it, dy is first multiplied by the ReLU's derivative: 0 where the normalised value or, after a sum,
    the output is ≤ 0, else 1. After a sum, this is also the gradient of the addend.
    """
    axes = other_axes(input0)
    values = input0.size // input0.shape[1]
    mean, inverse = _saved(kept, input0)
    normalised = (input0 - along(mean, input0)) * along(inverse, input0)
    if output is not None and addend_gradient is not None:
        output_gradient = output_gradient * np.where(output <= 0, 0, 1).astype(input0.dtype)
        addend_gradient[...] = output_gradient
    elif setting.relu:
        before = np.empty_like(input0)
        _normalise(input0, mean, inverse, weights, bias, before)
        output_gradient = output_gradient * np.where(before <= 0, 0, 1).astype(input0.dtype)
    total = np.sum(output_gradient, axis=axes, dtype=np.float64)
    weights_gradient[...] = np.sum(output_gradient * normalised, axis=axes, dtype=np.float64)
    if bias_gradient is not None:
        bias_gradient[...] = total
    if input_gradient is not None:
        centred = output_gradient - along((total / values).astype(input0.dtype), input0)
        centred -= normalised * along(weights_gradient / values, input0)
        np.multiply(centred, along(weights * inverse, input0), out=input_gradient)


def _normalise(x: Floats, mean: Floats, inverse: Floats, weights: Floats, bias: Floats | None, y: Floats) -> None:
    # The values are centred first, so that rounding errors are not relative to the mean.
    np.subtract(x, along(mean, x), out=y)
    y *= along(weights * inverse, x)
    if bias is not None:
        y += along(bias, x)


def _saved(kept: Array, x: Floats) -> Floats:
    """(2, C): the batch's mean, and the inverse of its standard deviation."""
    return kept.view(x.dtype).reshape(2, x.shape[1])
