"""Two-dimensional convolution and its gradients, as matrix products over the windows of the input."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crossbow.kernels.interface import ConvolutionGeometry
from crossbow.kernels.reference.prepare import Floats


def forward(
    *, input0: Floats, weights: Floats, output: Floats, geometry: ConvolutionGeometry, bias: Floats | None = None
) -> None:
    """y[n, o, i, j] = b[o] + Σ w[o, c, u, v] · x[n, c, i·s + u·d − p, j·s + v·d − p]."""
    windows = _windows(input0, geometry)
    for ins, outs in _groups(input0, weights, geometry):
        y = np.tensordot(windows[:, ins], weights[outs], axes=((1, 4, 5), (1, 2, 3)))  # (N, H', W', outputs)
        output[:, outs] = y.transpose(0, 3, 1, 2)
    if bias is not None:
        output += bias[:, np.newaxis, np.newaxis]


def backward_data(
    *, output_gradient: Floats, weights: Floats, input_gradient: Floats, geometry: ConvolutionGeometry
) -> None:
    """Every window's gradient wᵀ dy, added up where the windows lie on the input."""
    n, _, rows, columns = output_gradient.shape
    channels, height, width = input_gradient.shape[1:]
    (ph, pw), (kh, kw) = geometry.padding, geometry.kernel
    (sh, sw), (dh, dw) = geometry.stride, geometry.dilation
    padded = np.zeros((channels, n, height + 2 * ph, width + 2 * pw), input_gradient.dtype)
    for ins, outs in _groups(input_gradient, weights, geometry):
        windows = np.tensordot(weights[outs], output_gradient[:, outs], axes=((0,), (1,)))  # (C, kh, kw, N, H', W')
        for u in range(kh):
            for v in range(kw):
                below, right = u * dh + sh * rows, v * dw + sw * columns
                padded[ins, :, u * dh : below : sh, v * dw : right : sw] += windows[:, u, v]
    input_gradient[...] = padded[:, :, ph : ph + height, pw : pw + width].transpose(1, 0, 2, 3)


def backward_weights(
    *,
    input0: Floats,
    output_gradient: Floats,
    weights_gradient: Floats,
    geometry: ConvolutionGeometry,
    bias_gradient: Floats | None = None,
) -> None:
    """dw[o, c, u, v] = Σ dy[n, o, i, j] · x[n, c, i·s + u·d − p, j·s + v·d − p]; db[o] = Σ dy[n, o, i, j]."""
    windows = _windows(input0, geometry)
    for ins, outs in _groups(input0, weights_gradient, geometry):
        axes = ((0, 2, 3), (0, 2, 3))
        weights_gradient[outs] = np.tensordot(output_gradient[:, outs], windows[:, ins], axes=axes)
    if bias_gradient is not None:
        np.sum(output_gradient, axis=(0, 2, 3), out=bias_gradient)


def _windows(x: Floats, geometry: ConvolutionGeometry) -> Floats:
    """The windows of the zero-padded input, without copying them: (N, C, H', W', kh, kw)."""
    (ph, pw), (kh, kw) = geometry.padding, geometry.kernel
    (sh, sw), (dh, dw) = geometry.stride, geometry.dilation
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw))) if ph or pw else x
    span = (dh * (kh - 1) + 1, dw * (kw - 1) + 1)
    windows: Floats = np.lib.stride_tricks.sliding_window_view(padded, span, axis=(2, 3))
    return windows[:, :, ::sh, ::sw, ::dh, ::dw]


def _groups(x: Floats, weights: Floats, geometry: ConvolutionGeometry) -> Iterator[tuple[slice, slice]]:
    """The input and output channels of each group."""
    inputs, outputs = x.shape[1] // geometry.groups, weights.shape[0] // geometry.groups
    for group in range(geometry.groups):
        yield slice(group * inputs, (group + 1) * inputs), slice(group * outputs, (group + 1) * outputs)
