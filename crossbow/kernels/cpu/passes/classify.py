"""The index of the largest value."""

from __future__ import annotations

import math

import numpy as np

from crossbow.kernels.compiled import float32_at, int64_at, native, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LargestIndex


def _takes(request: LargestIndex) -> bool:
    """Whether the rows lie one after the other, in y's order: in logical order, or classes last."""
    in_rows = request.y.in_logical_order and (request.x.in_logical_order or request.axis == 1)
    return in_rows and request.ties == "first"


@PASSES.kernel(LargestIndex, _takes)
def forward(request: LargestIndex) -> PreparedKernel:
    x, axis = request.x, request.axis
    classes, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    if not x.in_logical_order:
        inner = 1
    return prepared_pass(request, largest, x.elements // (classes * inner), classes, inner)


@native
def largest(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, indices, outer rows, classes, distance from class to class."""
    block = int64_at(arguments)
    x, indices, classes, inner = float32_at(block[0]), float32_at(block[1]), block[3], block[4]
    for outer in range(block[2]):
        for place in range(inner):
            start = outer * classes * inner + place
            best, index = x[start], 0
            for c in range(1, classes):
                value = x[start + c * inner]
                # `not <=`, because what is not a number comes before every number; of several, the first
                if best == best and not value <= best:
                    best, index = value, c
            indices[outer * inner + place] = np.float32(index)
    return 0
