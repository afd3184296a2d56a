"""Softmax and its gradient; and passes before and after oneDNN's primitive, which ignores non-finite numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, native_pass, prepared_pass, uint32_at
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SoftmaxBackward, SoftmaxForward
from crossbow.kernels.strides import axes_in_memory
from crossbow.types import Tensor


@PASSES.kernel(SoftmaxForward, lambda request: alike(request.x, request.y))
def forward(request: SoftmaxForward) -> PreparedKernel:
    outer, length, inner = lines(request.x, request.axis)
    return prepared_pass(request, softmax, x="input0", y="output", outer=outer, length=length, inner=inner)


@PASSES.kernel(SoftmaxBackward, lambda request: alike(request.y, request.dy, request.dx))
def backward(request: SoftmaxBackward) -> PreparedKernel:
    outer, length, inner = lines(request.y, request.axis)
    places: dict[str, Any] = {"y": "output", "dy": "output_gradient", "dx": "input_gradient"}
    return prepared_pass(request, softmax_gradient, **places, outer=outer, length=length, inner=inner)


def lines(x: Tensor, axis: int) -> tuple[int, int, int]:
    """Number of elements before the axis in memory, along it, and after it: the sizes (outer, length, inner)."""
    axis %= len(x.shape)
    axes = axes_in_memory(x)
    outer = math.prod(x.shape[dimension] for dimension in axes[: axes.index(axis)])
    return outer, x.shape[axis], x.elements // (outer * x.shape[axis])


EXPONENT = np.uint32(0x7F800000)
"""The bits that are all set in a float32 that is not finite."""


MARK_ROWS = Arguments(x=Address, marks=Address, outer=int, length=int, inner=int)
"""The first mark is the number of x that are not finite. If there are any, each row also has a mark: NaN if its largest
x is not finite, because x − max x is NaN; otherwise 0."""


@native_pass(MARK_ROWS)
def mark_rows(block: Any) -> int:
    bits, x, marks = uint32_at(block.x), float32_at(block.x), float32_at(block.marks)
    rows, length, inner = block.outer, block.length, block.inner
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


@native_pass(Arguments(y=Address, marks=Address, outer=int, length=int, inner=int))
def add_marks(block: Any) -> int:
    """Add the marks of `mark_rows` to the rows of y."""
    y, marks, rows = float32_at(block.y), float32_at(block.marks), block.outer
    length, inner = block.length, block.inner
    if marks[0] == 0:
        return 0
    for row in range(rows):
        for k in range(length):
            for i in range(inner):
                y[(row * length + k) * inner + i] += marks[1 + row * inner + i]
    return 0


@native_pass(Arguments(x=Address, y=Address, outer=int, length=int, inner=int))
def softmax(block: Any) -> int:
    """y = exp(x − max x) / Σ exp(x − max x)."""
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
                power = np.exp(np.float32(x[i * inner] - largest))
                y[i * inner] = power
                total += np.float64(power)
            for i in range(length):
                y[i * inner] = np.float32(np.float64(y[i * inner]) / total)
    return 0


@native_pass(Arguments(y=Address, dy=Address, dx=Address, outer=int, length=int, inner=int))
def softmax_gradient(block: Any) -> int:
    """dx = y · (dy − Σ y · dy)."""
    length, inner = block.length, block.inner
    for row in range(block.outer):
        for place in range(inner):
            start = 4 * (row * length * inner + place)
            y, dy, dx = float32_at(block.y + start), float32_at(block.dy + start), float32_at(block.dx + start)
            total = 0.0
            for i in range(length):
                total += np.float64(y[i * inner]) * np.float64(dy[i * inner])
            sum_ = np.float32(total)
            for i in range(length):
                dx[i * inner] = y[i * inner] * (dy[i * inner] - sum_)
    return 0
