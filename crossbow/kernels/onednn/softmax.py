"""Softmax and its gradient, and passes around oneDNN's primitive, which overlooks numbers that are not finite."""

from __future__ import annotations

import math

import numpy as np

from crossbow.kernels.compiled import float32_at, int64_at, native, uint32_at
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn.memory import activation, attributes, axes_in_memory, engine
from crossbow.kernels.onednn.primitive import Steps
from crossbow.kernels.onednn.rooms import ONEDNN
from crossbow.kernels.requests import SoftmaxBackward, SoftmaxForward
from crossbow.types import Tensor


@ONEDNN.kernel(SoftmaxForward)
def forward(request: SoftmaxForward) -> PreparedKernel:
    x, y, axis = request.x, request.y, request.axis
    steps = Steps(request)
    operands = {dnnl.ARG_SRC: (activation(x), "input0"), dnnl.ARG_DST: (activation(y), "output")}
    sizes = _sizes(x, axis % len(x.shape))
    marks = steps.reserve(4 * (1 + sizes[0] * sizes[2]))
    steps.add_pass("marks", mark_rows, ("input0", marks), *sizes)
    steps.add("softmax", _forward(x, y, axis), operands)
    steps.add_pass("marked", add_marks, ("output", marks), *sizes)
    return steps.prepared()


@ONEDNN.kernel(SoftmaxBackward)
def backward(request: SoftmaxBackward) -> PreparedKernel:
    y, dy, dx, axis = request.y, request.dy, request.dx, request.axis
    descriptor = dnnl.dnnl_softmax_backward_primitive_desc_create(
        engine(),
        dnnl.SOFTMAX_ACCURATE,
        activation(dx),
        activation(dy),
        activation(y),
        axis % len(y.shape),
        _forward(dx, y, axis),
        attributes(),
    )
    steps = Steps(request)
    operands = {
        dnnl.ARG_DST: (activation(y), "output"),
        dnnl.ARG_DIFF_DST: (activation(dy), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(dx), "input_gradient"),
    }
    steps.add("softmax", descriptor, operands)
    return steps.prepared()


def _forward(x: Tensor, y: Tensor, axis: int) -> dnnl.Handle:
    return dnnl.dnnl_softmax_forward_primitive_desc_create(
        engine(),
        dnnl.FORWARD_TRAINING,
        dnnl.SOFTMAX_ACCURATE,
        activation(x),
        activation(y),
        axis % len(x.shape),
        attributes(),
    )


def _sizes(x: Tensor, axis: int) -> tuple[int, int, int]:
    """How many elements lie before the axis in memory, along it, and behind it."""
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
