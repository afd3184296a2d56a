"""The index of the largest value."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import LargestIndex


@computes(LargestIndex)
def forward(*, input0: Floats, output: Floats, axis: int, ties: str) -> None:
    """y = arg max x."""
    keep = output.ndim == input0.ndim
    if ties == "first":
        output[...] = np.argmax(input0, axis=axis, keepdims=keep)
    else:
        output[...] = input0.shape[axis] - 1 - np.argmax(np.flip(input0, axis), axis=axis, keepdims=keep)
