"""The index of the largest value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, native_pass, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LargestIndex


def _takes(request: LargestIndex) -> bool:
    """Whether the rows are contiguous and in y's order: in logical order, or classes last."""
    in_rows = request.y.in_logical_order and (request.x.in_logical_order or request.axis == 1)
    return in_rows and request.ties == "first"


@PASSES.kernel(LargestIndex, _takes)
def forward(request: LargestIndex) -> PreparedKernel:
    x, axis = request.x, request.axis
    classes, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    if not x.in_logical_order:
        inner = 1
    outer = x.elements // (classes * inner)
    return prepared_pass(request, largest, x="input0", indices="output", outer=outer, classes=classes, inner=inner)


@native_pass(Arguments(x=Address, indices=Address, outer=int, classes=int, inner=int))
def largest(block: Any) -> int:
    """inner: distance between the values of neighbouring classes."""
    x, indices, classes, inner = float32_at(block.x), float32_at(block.indices), block.classes, block.inner
    for outer in range(block.outer):
        for place in range(inner):
            start = outer * classes * inner + place
            best, index = x[start], 0
            for c in range(1, classes):
                value = x[start + c * inner]
                # `not <=`: NaN is larger than every number; of several NaN, the first
                if best == best and not value <= best:
                    best, index = value, c
            indices[outer * inner + place] = np.float32(index)
    return 0
