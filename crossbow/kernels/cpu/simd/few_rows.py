"""Inner products of one or two examples with large weights, which are read once, in the order of memory.

Such a product takes the time of reading the weights. A replica keeps them transposed, (features, outputs), so y is
the sum of rows of weights, each times a feature. Several rows are added at a time, while y stays in the cache. The
library's product for two rows takes 1.3 times as long. Each call computes some of the outputs. The calls are
independent, so a free thread can take some of them in a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, in_any_order, native_pass
from crossbow.kernels.cpu.rooms import SIMD
from crossbow.kernels.cpu.simd.inner_product import in_rows, weights_by_input
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.cpu.storage import lies
from crossbow.kernels.cpu.threads import max_threads
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.native import NativeCall
from crossbow.kernels.requests import InnerProductForward

ROWS = 2
"""Maximum number of rows; with more, products take longer than reading."""
LARGE = 2**20
"""Minimum size of the weights in bytes: half of a second-level cache."""
CALLS = 2
"""Number of calls, each of which computes some of the outputs."""
FEATURES = 4
"""Number of rows of weights that are added at a time."""


def _taken(request: InnerProductForward) -> bool:
    x, y, weights = request.x, request.y, request.weights
    outputs, features = weights.shape
    return (
        max_threads() == 1
        and math.prod(y.shape[:-1]) <= ROWS
        and in_rows(x, y)
        and 4 * outputs * features >= LARGE
        and outputs >= CALLS
        and lies(weights, *weights_by_input(x, y, weights.shape))
    )


@SIMD.kernel(InnerProductForward, _taken)
def forward(request: InnerProductForward) -> PreparedKernel:
    outputs, features = request.weights.shape
    steps = Steps(request, "rows")
    bias = "bias" if request.bias is not None else None
    for index in range(CALLS):
        first, end = (outputs * number // CALLS for number in (index, index + 1))
        steps.add_pass(
            "product",
            add_rows,
            x="input0",
            weights="weights",
            bias=bias,
            y="output",
            rows=math.prod(request.y.shape[:-1]),
            features=features,
            outputs=outputs,
            first=first,
            count=end - first,
            relu=int(request.relu),
        )
    kernel = steps.prepared()
    bind = kernel.bind

    def together(buffers: Buffers) -> Sequence[Call]:
        calls = [call for call in bind(buffers) if isinstance(call, NativeCall)]
        return [replace(call, together=index > 0) for index, call in enumerate(calls)]

    return replace(kernel, bind=together)


@in_any_order
def _add(y: int, x: int, weights: int, outputs: int, count: int) -> None:
    """y += x · w for `FEATURES` features."""
    total, factors = float32_at(y), float32_at(x)
    w0, w1 = float32_at(weights), float32_at(weights + 4 * outputs)
    w2, w3 = float32_at(weights + 8 * outputs), float32_at(weights + 12 * outputs)
    x0, x1, x2, x3 = factors[0], factors[1], factors[2], factors[3]
    for j in range(count):
        total[j] = total[j] + x0 * w0[j] + x1 * w1[j] + x2 * w2[j] + x3 * w3[j]


@in_any_order
def _add_one(y: int, x: int, weights: int, count: int) -> None:
    """y += x · w for one feature."""
    total, w, factor = float32_at(y), float32_at(weights), float32_at(x)[0]
    for j in range(count):
        total[j] = total[j] + factor * w[j]


@native_pass(
    Arguments(
        x=Address,
        weights=Address,
        bias=Address,
        y=Address,
        rows=int,
        features=int,
        outputs=int,
        first=int,
        count=int,
        relu=int,
    )
)
def add_rows(block: Any) -> int:
    """y = x · w + bias for the outputs first … first + count − 1; negative results are 0 with `relu`."""
    outputs, features, count = block.outputs, block.features, block.count
    for row in range(block.rows):
        y = float32_at(block.y + 4 * (row * outputs + block.first))
        for j in range(count):
            y[j] = float32_at(block.bias)[block.first + j] if block.bias != 0 else np.float32(0)
    whole = features - features % FEATURES
    for feature in range(0, whole, FEATURES):
        for row in range(block.rows):
            y_at, x_at = block.y + 4 * (row * outputs + block.first), block.x + 4 * (row * features + feature)
            _add(y_at, x_at, block.weights + 4 * (feature * outputs + block.first), outputs, count)
    for feature in range(whole, features):
        for row in range(block.rows):
            y_at, x_at = block.y + 4 * (row * outputs + block.first), block.x + 4 * (row * features + feature)
            _add_one(y_at, x_at, block.weights + 4 * (feature * outputs + block.first), count)
    if block.relu != 0:
        for row in range(block.rows):
            y = float32_at(block.y + 4 * (row * outputs + block.first))
            for j in range(count):
                y[j] = np.float32(0) if y[j] < 0 else y[j]
    return 0
