"""Softmax and its gradient; and passes around oneDNN's primitive, which overlooks numbers that are not finite."""

from __future__ import annotations

import math

import numpy as np

from crossbow.kernels.compiled import float32_at, int64_at, native, prepared_pass, uint32_at
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SoftmaxBackward, SoftmaxForward
from crossbow.kernels.strides import axes_in_memory
from crossbow.types import Tensor


@PASSES.kernel(SoftmaxForward, lambda request: alike(request.x, request.y))
def forward(request: SoftmaxForward) -> PreparedKernel:
    return prepared_pass(request, softmax, *lines(request.x, request.axis))


@PASSES.kernel(SoftmaxBackward, lambda request: alike(request.y, request.dy, request.dx))
def backward(request: SoftmaxBackward) -> PreparedKernel:
    return prepared_pass(request, softmax_gradient, *lines(request.y, request.axis))


def lines(x: Tensor, axis: int) -> tuple[int, int, int]:
    """How many elements lie before the axis in memory, along it, and behind it."""
    axis %= len(x.shape)
    axes = axes_in_memory(x)
    outer = math.prod(x.shape[dimension] for dimension in axes[: axes.index(axis)])
    return outer, x.shape[axis], x.elements // (outer * x.shape[axis])


EXPONENT = np.uint32(0x7F800000)
"""The bits of a float32 that are all set where it is not finite."""


@native
def mark_rows(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, marks, the three sizes. The first mark is how many x are not finite. If there are any, there is a mark
    for each row: 0 or, where its largest x is not finite, NaN, as x − max x is."""
    block = int64_at(arguments)
    bits, x, marks = uint32_at(block[0]), float32_at(block[0]), float32_at(block[1])
    rows, length, inner = block[2], block[3], block[4]
    found = 0
    for i in range(rows * length * inner):
        found += 1 if (bits[i] & EXPONENT) == EXPONENT else 0
    marks[0] = np.float32(found)
    if found == 0:
        return 0
    for row in range(rows):
        for i in range(inner):
            largest = np.float32(-np.inf)
            for k in range(length):
                value = x[(row * length + k) * inner + i]
                if not (value <= largest or largest != largest):
                    largest = value
            marks[1 + row * inner + i] = largest - largest
    return 0


@native
def add_marks(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: y, marks, the three sizes."""
    block = int64_at(arguments)
    y, marks, rows, length, inner = float32_at(block[0]), float32_at(block[1]), block[2], block[3], block[4]
    if marks[0] == 0:
        return 0
    for row in range(rows):
        for k in range(length):
            for i in range(inner):
                y[(row * length + k) * inner + i] += marks[1 + row * inner + i]
    return 0


@native
def softmax(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, the three sizes: y = exp(x − max x) / Σ exp(x − max x)."""
    b = int64_at(arguments)
    length, inner = b[3], b[4]
    for row in range(b[2]):
        for place in range(inner):
            start = 4 * (row * length * inner + place)
            x, y = float32_at(b[0] + start), float32_at(b[1] + start)
            largest = x[0]
            for i in range(1, length):
                largest = x[i * inner] if x[i * inner] > largest else largest
            total = 0.0  # NaN need not win above: it makes this sum NaN
            for i in range(length):
                power = np.exp(np.float32(x[i * inner] - largest))
                y[i * inner] = power
                total += np.float64(power)
            for i in range(length):
                y[i * inner] = np.float32(np.float64(y[i * inner]) / total)
    return 0


@native
def softmax_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: y, dy, dx, the three sizes: dx = y · (dy − Σ y · dy)."""
    b = int64_at(arguments)
    length, inner = b[4], b[5]
    for row in range(b[3]):
        for place in range(inner):
            start = 4 * (row * length * inner + place)
            y, dy, dx = float32_at(b[0] + start), float32_at(b[1] + start), float32_at(b[2] + start)
            total = 0.0
            for i in range(length):
                total += np.float64(y[i * inner]) * np.float64(dy[i * inner])
            sum_ = np.float32(total)
            for i in range(length):
                dx[i * inner] = y[i * inner] * (dy[i * inner] - sum_)
    return 0
