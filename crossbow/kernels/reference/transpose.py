"""Permutation of a tensor's axes, or of parts of them."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import TransposeBackward, TransposeForward
from crossbow.types import Shape


@computes(TransposeForward)
def forward(*, input0: Floats, output: Floats, sizes: Shape, order: tuple[int, ...]) -> None:
    """y = x, seen as `sizes`, transposed."""
    output[...] = input0.reshape(sizes).transpose(order).reshape(output.shape)


@computes(TransposeBackward)
def backward(*, output_gradient: Floats, input_gradient: Floats, sizes: Shape, order: tuple[int, ...]) -> None:
    """dx = dy, transposed back."""
    turned = output_gradient.reshape([sizes[axis] for axis in order])
    input_gradient[...] = turned.transpose(np.argsort(order)).reshape(input_gradient.shape)
