"""Activation functions and their gradients, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import CudaKernel, computed_in
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import ActivationBackward, ActivationForward
from crossbow.types import Tensor

MODES = ("relu", "clipped", "tanh", "sigmoid")
"""Their numbers in sources/activation.cu."""


@CUDA.kernel(ActivationForward)
def forward(request: ActivationForward) -> PreparedKernel:
    return _prepared(request, "activation_forward", request.x)


@CUDA.kernel(ActivationBackward)
def backward(request: ActivationBackward) -> PreparedKernel:
    return _prepared(request, "activation_backward", request.y)


def _prepared(request: ActivationForward | ActivationBackward, name: str, tensor: Tensor) -> PreparedKernel:
    kernel, real = CudaKernel("activation", name, tensor.dtype), computed_in(tensor.dtype).type
    constants = real(request.negative_slope), real(request.ceiling)
    numbers = np.int64(tensor.elements), np.int32(MODES.index(request.mode)), *constants

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(tensor.elements, *(buffers[role] for role in request.roles), *numbers, pointwise=True),)

    return request.prepared("cuda", bind)
