"""The logarithm of softmax, and its gradient. oneDNN's kernel has errors of 3e-6, while float32 rounds by 1e-7."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, native_pass, prepared_pass
from crossbow.kernels.cpu.passes.softmax import lines
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LogSoftmaxBackward, LogSoftmaxForward


@PASSES.kernel(LogSoftmaxForward, lambda request: alike(request.x, request.y))
def forward(request: LogSoftmaxForward) -> PreparedKernel:
    outer, length, inner = lines(request.x, request.axis)
    return prepared_pass(request, log_softmax, x="input0", y="output", outer=outer, length=length, inner=inner)


@PASSES.kernel(LogSoftmaxBackward, lambda request: alike(request.y, request.dy, request.dx))
def backward(request: LogSoftmaxBackward) -> PreparedKernel:
    outer, length, inner = lines(request.y, request.axis)
    places: dict[str, Any] = {"y": "output", "dy": "output_gradient", "dx": "input_gradient"}
    return prepared_pass(request, log_softmax_gradient, **places, outer=outer, length=length, inner=inner)


@native_pass(Arguments(x=Address, y=Address, outer=int, length=int, inner=int))
def log_softmax(block: Any) -> int:
    """y = x − max x − log Σ exp(x − max x)."""
    length, inner = block.length, block.inner
    for row in range(block.outer):
        for place in range(inner):
            start = 4 * (row * length * inner + place)
            x, y = float32_at(block.x + start), float32_at(block.y + start)
            largest = x[0]
            for i in range(1, length):
                largest = x[i * inner] if x[i * inner] > largest else largest
            total = 0.0  # NaN may lose above: it makes this sum NaN
            for i in range(length):
                total += np.float64(np.exp(np.float32(x[i * inner] - largest)))
            logarithm = np.float32(math.log(total))
            for i in range(length):
                y[i * inner] = np.float32(x[i * inner] - largest) - logarithm
    return 0


@native_pass(Arguments(y=Address, dy=Address, dx=Address, outer=int, length=int, inner=int))
def log_softmax_gradient(block: Any) -> int:
    """dx = dy − exp(y) · Σ dy."""
    length, inner = block.length, block.inner
    for row in range(block.outer):
        for place in range(inner):
            start = 4 * (row * length * inner + place)
            y, dy, dx = float32_at(block.y + start), float32_at(block.dy + start), float32_at(block.dx + start)
            total = 0.0
            for i in range(length):
                total += np.float64(dy[i * inner])
            sum_ = np.float32(total)
            for i in range(length):
                dx[i * inner] = dy[i * inner] - np.exp(y[i * inner]) * sum_
    return 0
