"""Two-dimensional stochastic pooling: compiled passes that pick what the reference kernels pick, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.compiled import TASK, float32_at, inlined, int32_at, int64_at, native, philox, prepared_pass
from crossbow.kernels.cpu.passes.windows import slides, window_slots
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import PoolingBackward, PoolingForward

_LOW = 0xFFFFFFFF


@PASSES.kernel(PoolingForward, lambda request: slides(request.x, request.geometry, "stochastic"))
def forward(request: PoolingForward) -> PreparedKernel:
    slots = window_slots(request.x, request.y, request.geometry)
    if not request.draws:
        return prepared_pass(request, expect, *slots)
    numbers = (request.key, request.seed & _LOW, (request.seed >> 32) & _LOW)
    return prepared_pass(request, pick, *slots, *numbers, kept=4 * request.y.elements)


@PASSES.kernel(PoolingBackward, lambda request: slides(request.dx, request.geometry, "stochastic"))
def backward(request: PoolingBackward) -> PreparedKernel:
    return prepared_pass(request, scatter, *window_slots(request.dx, request.dy, request.geometry))


@inlined
def _random_words(block: int, key: int, task: int, seed_low: int, seed_high: int) -> Any:
    """Four words at counter (block, key, task): as `crossbow.kernels.random`."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = np.uint64(block) & low, np.uint64(key) & low, np.uint64(task) & low, np.uint64(task) >> half
    return philox(counter[0], counter[1], counter[2], counter[3], np.uint64(seed_low), np.uint64(seed_high))


@native
def pick(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, state, y, kept, then as `window_slots`, key, seed low, seed high."""
    a = int64_at(arguments)
    x, y, kept = float32_at(a[0]), float32_at(a[2]), int32_at(a[3])
    b = int64_at(arguments + 16)  # where the window begins at 2
    task = int64_at(a[1])[TASK]
    words: Any = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    element = 0
    for n in range(b[10]):
        for c in range(b[11]):
            plane = n * b[2] + c * b[3]
            for i in range(b[14]):
                top = i * b[18] - b[20]
                for j in range(b[15]):
                    left = j * b[19] - b[21]
                    if element % 4 == 0:
                        words = _random_words(element // 4, b[26], task, b[27], b[28])
                    total = 0.0
                    for u in range(b[16]):
                        row = top + u * b[24]
                        for v in range(b[17]):
                            column = left + v * b[25]
                            if 0 <= row < b[12] and 0 <= column < b[13]:
                                value = np.float64(x[plane + row * b[4] + column * b[5]])
                                if not value <= 0:  # NaN too
                                    total += value
                    bound = total * (np.float64(words[element % 4]) / 4294967296.0)
                    before, picked, place = 0.0, -1, 0
                    for u in range(b[16]):
                        row = top + u * b[24]
                        for v in range(b[17]):
                            column = left + v * b[25]
                            if 0 <= row < b[12] and 0 <= column < b[13]:
                                here = plane + row * b[4] + column * b[5]
                                value = np.float64(x[here])
                                if picked < 0 or (value > 0 and before <= bound) or value != value:
                                    picked, place = u * b[17] + v, here
                                if not value <= 0:
                                    before += value
                    kept[element] = picked
                    y[n * b[6] + c * b[7] + i * b[8] + j * b[9]] = x[place]
                    element += 1
    return 0


@native
def expect(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, then as `window_slots`."""
    b = int64_at(arguments)
    x, y = float32_at(b[0]), float32_at(b[1])
    for n in range(b[10]):
        for c in range(b[11]):
            plane = n * b[2] + c * b[3]
            for i in range(b[14]):
                top = i * b[18] - b[20]
                for j in range(b[15]):
                    left = j * b[19] - b[21]
                    total, squares, first = 0.0, 0.0, -1
                    for u in range(b[16]):
                        row = top + u * b[24]
                        for v in range(b[17]):
                            column = left + v * b[25]
                            if 0 <= row < b[12] and 0 <= column < b[13]:
                                here = plane + row * b[4] + column * b[5]
                                value = np.float64(x[here])
                                if first < 0:
                                    first = here
                                if not value <= 0:
                                    total += value
                                    squares += value * value
                    mean = np.float32(squares / total) if total != 0 else x[first]
                    y[n * b[6] + c * b[7] + i * b[8] + j * b[9]] = mean
    return 0


@native
def scatter(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: dy, kept, dx, then as `window_slots` of dx and dy."""
    a, b = int64_at(arguments), int64_at(arguments + 8)  # where the window begins at 2
    dy, kept, dx = float32_at(a[0]), int32_at(a[1]), float32_at(a[2])
    for index in range(b[10] * b[11] * b[12] * b[13]):
        dx[index] = np.float32(0)
    element = 0
    for n in range(b[10]):
        for c in range(b[11]):
            for i in range(b[14]):
                for j in range(b[15]):
                    row = i * b[18] - b[20] + kept[element] // b[17] * b[24]
                    column = j * b[19] - b[21] + kept[element] % b[17] * b[25]
                    gradient = dy[n * b[6] + c * b[7] + i * b[8] + j * b[9]]
                    dx[n * b[2] + c * b[3] + row * b[4] + column * b[5]] += gradient
                    element += 1
    return 0
