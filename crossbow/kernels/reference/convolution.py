"""Convolution over any number of spatial axes and its gradients, as matrix products over the windows of the input."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.reference.scaling import along, other_axes
from crossbow.kernels.reference.windows import inside, padded, positions
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.types import Shape


@computes(ConvolutionForward)
def forward(
    *, input0: Floats, weights: Floats, output: Floats, geometry: ConvolutionGeometry, bias: Floats | None = None
) -> None:
    """y[n, o, i, j] = b[o] + Σ w[o, c, u, v] · x[n, c, i·s + u·d − p, j·s + v·d − p]."""
    windows, axes = _windows(input0, output.shape, geometry), input0.ndim - 2
    summed = ((1, *range(2 + axes, 2 + 2 * axes)), tuple(range(1, 2 + axes)))  # channels and positions
    for ins, outs in _groups(input0, weights, geometry):
        y = np.tensordot(windows[:, ins], weights[outs], axes=summed)  # (N, H', W', outputs)
        output[:, outs] = np.moveaxis(y, -1, 1)
    if bias is not None:
        output += along(bias, output)


@computes(ConvolutionBackwardData)
def backward_data(
    *,
    output_gradient: Floats,
    weights: Floats,
    input_gradient: Floats,
    geometry: ConvolutionGeometry,
    addend: Floats | None = None,
) -> None:
    """The gradient of every window, wᵀ dy, added up at the window's location in the input (+ addend)."""
    dy = output_gradient
    room = padded(np.zeros_like(input_gradient), dy.shape, geometry, 0)
    for ins, outs in _groups(input_gradient, weights, geometry):
        windows = np.tensordot(weights[outs], dy[:, outs], axes=((0,), (1,)))  # (C, kh, kw, N, H', W')
        windows = windows.reshape(windows.shape[0], math.prod(geometry.kernel), dy.shape[0], *dy.shape[2:])
        for number, place in positions(dy.shape, geometry):
            room[:, ins][place] += windows[:, number].swapaxes(0, 1)
    gradient = inside(room, input_gradient.shape, geometry)
    input_gradient[...] = gradient if addend is None else gradient + addend


@computes(ConvolutionBackwardWeights)
def backward_weights(
    *,
    input0: Floats,
    output_gradient: Floats,
    weights_gradient: Floats,
    geometry: ConvolutionGeometry,
    bias_gradient: Floats | None = None,
) -> None:
    """dw[o, c, u, v] = Σ dy[n, o, i, j] · x[n, c, i·s + u·d − p, j·s + v·d − p]; db[o] = Σ dy[n, o, i, j]."""
    dy = output_gradient
    windows, summed = _windows(input0, dy.shape, geometry), other_axes(dy)
    for ins, outs in _groups(input0, weights_gradient, geometry):
        weights_gradient[outs] = np.tensordot(dy[:, outs], windows[:, ins], axes=(summed, summed))
    if bias_gradient is not None:
        bias_gradient[...] = np.sum(dy, axis=summed, dtype=np.float64)


def _windows(x: Floats, output: Shape, geometry: ConvolutionGeometry) -> Floats:
    """The windows of the zero-padded input, without copies: (N, C, H', W', kh, kw)."""
    room, axes = padded(x, output, geometry, 0), tuple(range(2, x.ndim))
    windows: Floats = np.lib.stride_tricks.sliding_window_view(room, geometry.extent, axis=axes)
    steps = [slice(None, None, step) for step in (*geometry.stride, *geometry.dilation)]
    return windows[(slice(None), slice(None), *steps)]


def _groups(x: Floats, weights: Floats, geometry: ConvolutionGeometry) -> Iterator[tuple[slice, slice]]:
    """The input and output channels of each group."""
    inputs, outputs = x.shape[1] // geometry.groups, weights.shape[0] // geometry.groups
    for group in range(geometry.groups):
        yield slice(group * inputs, (group + 1) * inputs), slice(group * outputs, (group + 1) * outputs)
