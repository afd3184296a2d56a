"""Softmax and its logarithm, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.four import four_around, threads_per_line
from crossbow.kernels.cuda.launch import MOST_BLOCKS, Argument, Kernel
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.types import Tensor


def forward(x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
    """input0 → output; may be in place."""
    return _forward("softmax_forward", x, y, axis)


def backward(y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
    """output, output_gradient → input_gradient; may be in place on output_gradient."""
    return _backward("softmax_backward", y, axis)


def log_forward(x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
    """input0 → output; may be in place."""
    return _forward("log_softmax_forward", x, y, axis)


def log_backward(y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
    """output, output_gradient → input_gradient; may be in place on output_gradient."""
    return _backward("log_softmax_backward", y, axis)


def _forward(name: str, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
    (source, place), (target, _) = four_around(x, axis), four_around(y, axis)
    return _along_lines(name, x, axis, ("input0",), "output", source, target, place)


def _backward(name: str, y: Tensor, axis: int) -> PreparedKernel:
    return _along_lines(name, y, axis, ("output", "output_gradient"), "input_gradient", *four_around(y, axis))


def _along_lines(
    name: str, tensor: Tensor, axis: int, reads: tuple[str, ...], write: str, *constants: Argument
) -> PreparedKernel:
    """The kernel that suits the lines, with the buffers and the constants; in place on the last that is read."""
    threads, lines = threads_per_line(tensor, axis), tensor.elements // tensor.shape[axis]
    kernel = Kernel("softmax", name if threads == 1 else f"{name}_rows", tensor.dtype)

    def bind(buffers: Buffers) -> Sequence[Call]:
        arguments = (*(buffers[role] for role in (*reads, write)), *constants, np.int64(lines))
        if threads == 1:
            return (kernel.each(lines, *arguments),)
        blocks, shared = min(lines, MOST_BLOCKS), threads * np.dtype(np.float64).itemsize
        return (kernel.blocks(blocks, *arguments, threads=threads, shared=shared),)

    return PreparedKernel(f"{name} cuda", reads, (write,), bind, in_place=(reads[-1], write))
