"""Softmax and its logarithm, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.four import four_around, threads_per_line
from crossbow.kernels.cuda.launch import MOST_BLOCKS, Argument, CudaKernel
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import LogSoftmaxBackward, LogSoftmaxForward, Request, SoftmaxBackward, SoftmaxForward
from crossbow.types import Tensor


@CUDA.kernel(SoftmaxForward)
@CUDA.kernel(LogSoftmaxForward)
def forward(request: SoftmaxForward | LogSoftmaxForward) -> PreparedKernel:
    x, axis = request.x, request.axis
    (source, place), (target, _) = four_around(x, axis), four_around(request.y, axis)
    return _along_lines(request, x, axis, source, target, place)


@CUDA.kernel(SoftmaxBackward)
@CUDA.kernel(LogSoftmaxBackward)
def backward(request: SoftmaxBackward | LogSoftmaxBackward) -> PreparedKernel:
    return _along_lines(request, request.y, request.axis, *four_around(request.y, request.axis))


def _along_lines(request: Request, tensor: Tensor, axis: int, *constants: Argument) -> PreparedKernel:
    """The call of the kernel for these lines, with buffers and constants."""
    threads, lines = threads_per_line(tensor, axis), tensor.elements // tensor.shape[axis]
    name = request.name
    kernel = CudaKernel("softmax", name if threads == 1 else f"{name}_rows", tensor.dtype)

    def bind(buffers: Buffers) -> Sequence[Call]:
        arguments = (*(buffers[role] for role in request.roles), *constants, np.int64(lines))
        if threads == 1:
            return (kernel.each(lines, *arguments, work=tensor.shape[axis]),)
        blocks, shared = min(lines, MOST_BLOCKS), threads * np.dtype(np.float64).itemsize
        return (kernel.blocks(blocks, *arguments, threads=threads, shared=shared),)

    return request.prepared("cuda", bind)
