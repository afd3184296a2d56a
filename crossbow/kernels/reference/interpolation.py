"""Interpolation along the spatial axes, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.reference.scaling import along
from crossbow.kernels.requests import Interpolation, InterpolationBackward, InterpolationForward


@computes(InterpolationForward)
def forward(*, input0: Floats, output: Floats, axes: Sequence[Interpolation]) -> None:
    """y[i] = (1 − part) · x[lower] + part · x[upper], along each axis."""
    y: Floats = input0
    for axis, interpolation in enumerate(axes, 2):
        lower, upper, part = _neighbours(interpolation, y.shape[axis], output.shape[axis])
        part = along(part, y, axis)
        first, second = np.take(y, lower, axis), np.take(y, upper, axis)
        with np.errstate(invalid="ignore"):  # 0 · ∞, where `second` does not count
            y = np.where(part == 0, first, (1 - part) * first + part * second).astype(input0.dtype)
    output[...] = y


@computes(InterpolationBackward)
def backward(*, output_gradient: Floats, input_gradient: Floats, axes: Sequence[Interpolation]) -> None:
    """dx[lower] += (1 − part) · dy[i] and dx[upper] += part · dy[i], along each axis from the last on."""
    dx: Floats = output_gradient
    for axis, interpolation in reversed(list(enumerate(axes, 2))):
        size = input_gradient.shape[axis]
        lower, upper, part = _neighbours(interpolation, size, dx.shape[axis])
        dy = np.moveaxis(dx, axis, 0)
        sums = np.zeros((size, *dy.shape[1:]))
        part = along(part, dy, 0)
        np.add.at(sums, lower, (1 - part) * dy)
        between = part.reshape(-1) != 0
        np.add.at(sums, upper[between], part[between] * dy[between])
        dx = np.moveaxis(sums, 0, axis).astype(input_gradient.dtype)
    input_gradient[...] = dx


def _neighbours(
    interpolation: Interpolation, size: int, target: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[Any]]:
    """For each position of the output: the two positions of the input, and the factor of the second."""
    position = np.maximum(interpolation.ratio * np.arange(target) + interpolation.offset, 0)
    lower = np.minimum(np.floor(position).astype(np.intp), size - 1)
    upper = np.minimum(lower + 1, size - 1)
    part = np.where((lower == upper) | (not interpolation.linear), 0, position - lower)
    return lower, upper, part
