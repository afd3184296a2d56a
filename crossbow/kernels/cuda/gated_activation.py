"""Activation functions that multiply their input by a gate, and their gradients, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import CudaKernel
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import GatedActivationBackward, GatedActivationForward

GATES = ("gelu", "gelu_tanh", "silu", "hard_swish")
"""Their numbers in sources/gated_activation.cu."""


@CUDA.kernel(GatedActivationForward)
def forward(request: GatedActivationForward) -> PreparedKernel:
    return _prepared(request, "gated_activation_forward")


@CUDA.kernel(GatedActivationBackward)
def backward(request: GatedActivationBackward) -> PreparedKernel:
    return _prepared(request, "gated_activation_backward")


def _prepared(request: GatedActivationForward | GatedActivationBackward, name: str) -> PreparedKernel:
    kernel, elements = CudaKernel("gated_activation", name, request.x.dtype), request.x.elements
    numbers = np.int64(elements), np.int32(GATES.index(request.gate))

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(elements, *(buffers[role] for role in request.roles), *numbers, pointwise=True),)

    return request.prepared("cuda", bind)
