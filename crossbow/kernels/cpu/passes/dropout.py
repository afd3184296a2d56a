"""Dropout. The mask is `crossbow.kernels.random.keep_mask`, drawn again in the gradient."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.compiled import TASK, float32_at, float64_at, int64_at, native, prepared_pass, uint32_at
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.random import ROUNDS, threshold
from crossbow.kernels.requests import DropoutBackward, DropoutForward
from crossbow.types import Layout, Tensor

CHUNK = 4096
"""Elements whose random words are drawn together: 16 KB, so that they stay in the first-level cache."""

_LOW = 0xFFFFFFFF


@PASSES.kernel(DropoutForward, lambda request: alike(request.x, request.y))
def forward(request: DropoutForward) -> PreparedKernel:
    return _prepared(request, request.x)


@PASSES.kernel(DropoutBackward, lambda request: alike(request.dy, request.dx))
def backward(request: DropoutBackward) -> PreparedKernel:
    return _prepared(request, request.dy)


def _prepared(request: DropoutForward | DropoutBackward, x: Tensor) -> PreparedKernel:
    scale = float(np.float32(1 / (1 - request.ratio)))
    channels, positions = 1, 1
    if x.layout is Layout.CHANNELS_LAST:
        _, channels, height, width = x.shape
        positions = height * width
    numbers = (x.elements, channels, positions, threshold(request.ratio), scale, request.key)
    seed = (request.seed & _LOW, (request.seed >> 32) & _LOW)
    return prepared_pass(request, drop, *numbers, *seed, workspace=4 * CHUNK)


@native
def drop(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, state, y, words (room), elements, C and H·W where channels are last (else 1, 1), threshold, scale, key,
    seed low, seed high."""
    block = int64_at(arguments)
    x, y, words = float32_at(block[0]), float32_at(block[2]), uint32_at(block[3])
    elements, channels, positions = block[4], block[5], block[6]
    least, scale = np.uint32(block[7]), np.float32(float64_at(arguments)[8])
    task = int64_at(block[1])[TASK]
    # Philox4x32-10, spelt out in 64-bit integers so that the loop over counters becomes vector code.
    low = np.uint64(0xFFFFFFFF)
    first_key, second_key = np.uint64(block[10]), np.uint64(block[11])
    for start in range(0, elements, CHUNK):
        stop = min(start + CHUNK, elements)
        for counter in range((stop - start + 3) // 4):
            c0, c1 = np.uint64(start // 4 + counter) & low, np.uint64(block[9]) & low
            c2, c3 = np.uint64(task) & low, np.uint64(task) >> np.uint64(32)
            k0, k1 = first_key, second_key
            for _ in range(ROUNDS):
                p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
                c0, c1 = (p1 >> np.uint64(32)) ^ c1 ^ k0, p1 & low
                c2, c3 = (p0 >> np.uint64(32)) ^ c3 ^ k1, p0 & low
                k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
            words[4 * counter] = np.uint32(c0)
            words[4 * counter + 1] = np.uint32(c1)
            words[4 * counter + 2] = np.uint32(c2)
            words[4 * counter + 3] = np.uint32(c3)
        if channels == 1 or positions == 1:
            for index in range(start, stop):
                y[index] = x[index] * (scale if words[index - start] >= least else np.float32(0))
        else:
            for index in range(start, stop):
                channel = index // positions
                place = (channel // channels * positions + index % positions) * channels + channel % channels
                y[place] = x[place] * (scale if words[index - start] >= least else np.float32(0))
    return 0
