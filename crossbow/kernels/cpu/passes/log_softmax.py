"""The logarithm of softmax, and its gradient: passes, because oneDNN's is off by 3e-6 where float32 rounds by 1e-7."""

from __future__ import annotations

import math

import numpy as np

from crossbow.kernels.compiled import float32_at, int64_at, native, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LogSoftmaxBackward, LogSoftmaxForward
from crossbow.kernels.strides import axes_in_memory
from crossbow.types import Tensor


@PASSES.kernel(LogSoftmaxForward, lambda request: alike(request.x, request.y))
def forward(request: LogSoftmaxForward) -> PreparedKernel:
    return prepared_pass(request, log_softmax, *_lines(request.x, request.axis))


@PASSES.kernel(LogSoftmaxBackward, lambda request: alike(request.y, request.dy, request.dx))
def backward(request: LogSoftmaxBackward) -> PreparedKernel:
    return prepared_pass(request, log_softmax_gradient, *_lines(request.y, request.axis))


def _lines(tensor: Tensor, axis: int) -> tuple[int, int, int]:
    """How many blocks of memory there are, the length of a line, and how many lie beside each other in a block."""
    axes = axes_in_memory(tensor)
    place = axes.index(axis)
    sizes = [tensor.shape[each] for each in axes]
    return math.prod(sizes[:place]), sizes[place], math.prod(sizes[place + 1 :])


@native
def log_softmax(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, the three numbers of `_lines`."""
    b = int64_at(arguments)
    length, beside = b[3], b[4]
    for block in range(b[2]):
        for place in range(beside):
            start = 4 * (block * length * beside + place)
            x, y = float32_at(b[0] + start), float32_at(b[1] + start)
            largest = x[0]
            for i in range(1, length):
                largest = x[i * beside] if x[i * beside] > largest else largest
            total = 0.0  # NaN need not win above: it makes this sum NaN
            for i in range(length):
                total += np.float64(np.exp(np.float32(x[i * beside] - largest)))
            logarithm = np.float32(math.log(total))
            for i in range(length):
                y[i * beside] = np.float32(x[i * beside] - largest) - logarithm
    return 0


@native
def log_softmax_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: y, dy, dx, the three numbers of `_lines`."""
    b = int64_at(arguments)
    length, beside = b[4], b[5]
    for block in range(b[3]):
        for place in range(beside):
            start = 4 * (block * length * beside + place)
            y, dy, dx = float32_at(b[0] + start), float32_at(b[1] + start), float32_at(b[2] + start)
            total = 0.0
            for i in range(length):
                total += np.float64(dy[i * beside])
            sum_ = np.float32(total)
            for i in range(length):
                dx[i * beside] = dy[i * beside] - np.exp(y[i * beside]) * sum_
    return 0
