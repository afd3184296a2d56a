"""Two-dimensional stochastic pooling: compiled passes that select exactly the same elements as the reference
kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import (
    TASK,
    float32_at,
    inlined,
    int32_at,
    int64_at,
    native_pass,
    philox,
    prepared_pass,
)
from crossbow.kernels.cpu.passes.windows import WINDOWS, slides, windows
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.random import halves
from crossbow.kernels.requests import PoolingBackward, PoolingForward


@PASSES.kernel(PoolingForward, lambda request: slides(request.x, request.geometry, "stochastic"))
def forward(request: PoolingForward) -> PreparedKernel:
    sizes = windows(request.x, request.y, request.geometry)
    if not request.draws:
        return prepared_pass(request, expect, x="input0", y="output", windows=sizes)
    low, high = halves(request.seed)
    return prepared_pass(
        request,
        pick,
        nbytes_kept=4 * request.y.elements,
        x="input0",
        state="state",
        y="output",
        kept="kept",
        windows=sizes,
        key=request.key,
        seed_low=low,
        seed_high=high,
    )


@PASSES.kernel(PoolingBackward, lambda request: slides(request.dx, request.geometry, "stochastic"))
def backward(request: PoolingBackward) -> PreparedKernel:
    sizes = windows(request.dx, request.dy, request.geometry)
    return prepared_pass(request, scatter, dy="output_gradient", kept="kept", dx="input_gradient", windows=sizes)


@inlined
def _random_words(block: int, key: int, task: int, seed_low: int, seed_high: int) -> Any:
    """Four words at the counter (block, key, task), as in `crossbow.kernels.random`."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = np.uint64(block) & low, np.uint64(key) & low, np.uint64(task) & low, np.uint64(task) >> half
    return philox(counter[0], counter[1], counter[2], counter[3], np.uint64(seed_low), np.uint64(seed_high))


PICK = Arguments(
    x=Address, state=Address, y=Address, kept=Address, windows=WINDOWS, key=int, seed_low=int, seed_high=int
)


@native_pass(PICK)
def pick(block: Any) -> int:
    w, x, y, kept = block.windows, float32_at(block.x), float32_at(block.y), int32_at(block.kept)
    task = int64_at(block.state)[TASK]
    words: Any = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    element = 0
    for n in range(w.images):
        for c in range(w.channels):
            plane = n * w.x.n + c * w.x.c
            for i in range(w.rows):
                top = i * w.row_stride - w.top
                for j in range(w.columns):
                    left = j * w.column_stride - w.left
                    if element % 4 == 0:
                        words = _random_words(element // 4, block.key, task, block.seed_low, block.seed_high)
                    total = 0.0
                    for u in range(w.kernel_rows):
                        row = top + u * w.row_dilation
                        for v in range(w.kernel_columns):
                            column = left + v * w.column_dilation
                            if 0 <= row < w.height and 0 <= column < w.width:
                                value = np.float64(x[plane + row * w.x.h + column * w.x.w])
                                if not value <= 0:  # NaN too
                                    total += value
                    bound = total * (np.float64(words[element % 4]) / 4294967296.0)
                    before, picked, place = 0.0, -1, 0
                    for u in range(w.kernel_rows):
                        row = top + u * w.row_dilation
                        for v in range(w.kernel_columns):
                            column = left + v * w.column_dilation
                            if 0 <= row < w.height and 0 <= column < w.width:
                                here = plane + row * w.x.h + column * w.x.w
                                value = np.float64(x[here])
                                if picked < 0 or (value > 0 and before <= bound) or value != value:
                                    picked, place = u * w.kernel_columns + v, here
                                if not value <= 0:
                                    before += value
                    kept[element] = picked
                    y[n * w.y.n + c * w.y.c + i * w.y.h + j * w.y.w] = x[place]
                    element += 1
    return 0


@native_pass(Arguments(x=Address, y=Address, windows=WINDOWS))
def expect(block: Any) -> int:
    """The expectation of a drawn value, Σ x² / Σ x over the positive numbers of a window."""
    w, x, y = block.windows, float32_at(block.x), float32_at(block.y)
    for n in range(w.images):
        for c in range(w.channels):
            plane = n * w.x.n + c * w.x.c
            for i in range(w.rows):
                top = i * w.row_stride - w.top
                for j in range(w.columns):
                    left = j * w.column_stride - w.left
                    total, squares, first = 0.0, 0.0, -1
                    for u in range(w.kernel_rows):
                        row = top + u * w.row_dilation
                        for v in range(w.kernel_columns):
                            column = left + v * w.column_dilation
                            if 0 <= row < w.height and 0 <= column < w.width:
                                here = plane + row * w.x.h + column * w.x.w
                                value = np.float64(x[here])
                                if first < 0:
                                    first = here
                                if not value <= 0:
                                    total += value
                                    squares += value * value
                    mean = np.float32(squares / total) if total != 0 else x[first]
                    y[n * w.y.n + c * w.y.c + i * w.y.h + j * w.y.w] = mean
    return 0


@native_pass(Arguments(dy=Address, kept=Address, dx=Address, windows=WINDOWS))
def scatter(block: Any) -> int:
    w, dy, kept, dx = block.windows, float32_at(block.dy), int32_at(block.kept), float32_at(block.dx)
    for index in range(w.images * w.channels * w.height * w.width):
        dx[index] = np.float32(0)
    element = 0
    for n in range(w.images):
        for c in range(w.channels):
            for i in range(w.rows):
                for j in range(w.columns):
                    row = i * w.row_stride - w.top + kept[element] // w.kernel_columns * w.row_dilation
                    column = j * w.column_stride - w.left + kept[element] % w.kernel_columns * w.column_dilation
                    gradient = dy[n * w.y.n + c * w.y.c + i * w.y.h + j * w.y.w]
                    dx[n * w.x.n + c * w.x.c + row * w.x.h + column * w.x.w] += gradient
                    element += 1
    return 0
