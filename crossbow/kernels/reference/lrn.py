"""Local response normalisation: y = x · s^−β with s = κ + share · Σ x² over a window."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import LRNBackward, LRNForward, ResponseGeometry


@computes(LRNForward)
def forward(*, input0: Floats, output: Floats, geometry: ResponseGeometry) -> None:
    """y = x · s^−β."""
    np.multiply(input0, _strength(input0, geometry) ** -geometry.beta, out=output)


@computes(LRNBackward)
def backward(*, input0: Floats, output_gradient: Floats, input_gradient: Floats, geometry: ResponseGeometry) -> None:
    """dx_j = dy_j · s_j^−β − 2 · share · β · x_j · Σ dy_i · x_i · s_i^(−β−1), over the i whose window contains j."""
    strength = _strength(input0, geometry)
    direct = output_gradient * strength**-geometry.beta
    felt = _summed(direct * input0 / strength, geometry, geometry.after, geometry.before)
    np.subtract(direct, 2 * geometry.share * geometry.beta * input0 * felt, out=input_gradient)


def _strength(x: Floats, geometry: ResponseGeometry) -> Floats:
    strength: Floats = geometry.kappa + geometry.share * _summed(x * x, geometry, geometry.before, geometry.after)
    return strength


def _summed(x: Floats, geometry: ResponseGeometry, before: int, after: int) -> Floats:
    """The sum over every window, with the given extent before and after its element; outside are zeros."""
    for axis in geometry.axes if x.size else ():
        widths = [(before, after) if dimension == axis else (0, 0) for dimension in range(x.ndim)]
        x = sliding_window_view(np.pad(x, widths), geometry.size, axis=axis).sum(axis=-1)
    return x
