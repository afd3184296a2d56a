"""Activation functions and their gradients, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import Kernel, computed_in
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.types import Tensor

MODES = ("relu", "clipped", "tanh", "sigmoid")
"""Their numbers in sources/activation.cu."""


def forward(x: Tensor, y: Tensor, mode: str, negative_slope: float, ceiling: float) -> PreparedKernel:
    """input0 → output."""
    kernel, numbers = Kernel("activation", "activation_forward", x.dtype), _numbers(x, mode, negative_slope, ceiling)

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(x.elements, buffers["input0"], buffers["output"], *numbers),)

    return PreparedKernel(
        f"activation_forward {mode} cuda", ("input0",), ("output",), bind, in_place=("input0", "output")
    )


def backward(y: Tensor, dy: Tensor, dx: Tensor, mode: str, negative_slope: float, ceiling: float) -> PreparedKernel:
    """output, output_gradient → input_gradient."""
    kernel, numbers = Kernel("activation", "activation_backward", y.dtype), _numbers(y, mode, negative_slope, ceiling)
    reads, writes = ("output", "output_gradient"), ("input_gradient",)

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(y.elements, *(buffers[role] for role in (*reads, *writes)), *numbers),)

    name = f"activation_backward {mode} cuda"
    return PreparedKernel(name, reads, writes, bind, in_place=("output_gradient", "input_gradient"))


def _numbers(tensor: Tensor, mode: str, negative_slope: float, ceiling: float) -> tuple[np.generic, ...]:
    real = computed_in(tensor.dtype).type
    return np.int64(tensor.elements), np.int32(MODES.index(mode)), real(negative_slope), real(ceiling)
