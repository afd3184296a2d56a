"""Dropout. The gradient draws the mask again, so that nothing is stored in between."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.interface import State
from crossbow.kernels.random import keep_mask
from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import DropoutBackward, DropoutForward
from crossbow.types import Array, Shape


@computes(DropoutForward)
def forward(*, input0: Floats, state: Array, output: Floats, ratio: float, seed: int, key: int) -> None:
    """y = x · mask / (1 − ratio)."""
    np.multiply(input0, _factors(input0.shape, output.dtype, ratio, seed, key, state), out=output)


@computes(DropoutBackward)
def backward(
    *, output_gradient: Floats, state: Array, input_gradient: Floats, ratio: float, seed: int, key: int
) -> None:
    """dx = dy · mask / (1 − ratio)."""
    factors = _factors(output_gradient.shape, input_gradient.dtype, ratio, seed, key, state)
    np.multiply(output_gradient, factors, out=input_gradient)


def _factors(shape: Shape, dtype: np.dtype[np.generic], ratio: float, seed: int, key: int, state: Array) -> Floats:
    """The factor of each element, in NCHW order: 0, or 1 / (1 − ratio) rounded to the type."""
    mask = keep_mask(int(np.prod(shape)), ratio, seed, key, int(state[State.TASK])).reshape(shape)
    return mask * dtype.type(1 / (1 - ratio))
