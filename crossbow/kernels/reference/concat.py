"""Concatenation of tensors along an axis."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import ConcatBackward, ConcatForward


@computes(ConcatForward)
def forward(*, output: Floats, axis: int, **inputs: Floats) -> None:
    """y = the concatenated inputs."""
    np.concatenate([inputs[f"input{number}"] for number in range(len(inputs))], axis=axis, out=output)


@computes(ConcatBackward)
def backward(*, output_gradient: Floats, input_gradient: Floats, axis: int, start: int) -> None:
    """dx = the slice of dy from `start` on."""
    count = input_gradient.shape[axis]
    input_gradient[...] = output_gradient[(*[slice(None)] * axis, slice(start, start + count))]
