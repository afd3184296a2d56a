"""Dropout. The mask is `crossbow.kernels.random.keep_mask`, drawn again in the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import TASK, float32_at, int64_at, native_pass, prepared_pass, uint32_at
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.random import ROUNDS, halves, threshold
from crossbow.kernels.requests import DropoutBackward, DropoutForward
from crossbow.types import Layout, Tensor

CHUNK = 4096
"""Number of elements whose random words are drawn together: 16 KB, which stay in the first-level cache."""


@PASSES.kernel(DropoutForward, lambda request: alike(request.x, request.y))
def forward(request: DropoutForward) -> PreparedKernel:
    return _prepared(request, request.x, "input0", "output")


@PASSES.kernel(DropoutBackward, lambda request: alike(request.dy, request.dx))
def backward(request: DropoutBackward) -> PreparedKernel:
    return _prepared(request, request.dy, "output_gradient", "input_gradient")


def _prepared(request: DropoutForward | DropoutBackward, x: Tensor, read: str, write: str) -> PreparedKernel:
    scale = float(np.float32(1 / (1 - request.ratio)))
    low, high = halves(request.seed)
    channels, positions = 1, 1
    if x.layout is Layout.CHANNELS_LAST:
        _, channels, height, width = x.shape
        positions = height * width
    return prepared_pass(
        request,
        drop,
        workspace=4 * CHUNK,
        x=read,
        state="state",
        y=write,
        words="workspace",
        elements=x.elements,
        channels=channels,
        positions=positions,
        threshold=threshold(request.ratio),
        scale=scale,
        key=request.key,
        seed_low=low,
        seed_high=high,
    )


DROP = Arguments(
    x=Address,
    state=Address,
    y=Address,
    words=Address,
    elements=int,
    channels=int,
    positions=int,
    threshold=int,
    scale=float,
    key=int,
    seed_low=int,
    seed_high=int,
)
"""words: workspace for CHUNK words. channels, positions: C and H·W of channels-last images, otherwise 1 and 1."""


@native_pass(DROP)
def drop(block: Any) -> int:
    x, y, words = float32_at(block.x), float32_at(block.y), uint32_at(block.words)
    elements, channels, positions = block.elements, block.channels, block.positions
    least, scale = np.uint32(block.threshold), np.float32(block.scale)
    task = int64_at(block.state)[TASK]
    # Philox4x32-10, written out in 64-bit integers so that the loop over counters becomes vector code.
    low = np.uint64(0xFFFFFFFF)
    first_key, second_key = np.uint64(block.seed_low), np.uint64(block.seed_high)
    for start in range(0, elements, CHUNK):
        stop = min(start + CHUNK, elements)
        for counter in range((stop - start + 3) // 4):
            c0, c1 = np.uint64(start // 4 + counter) & low, np.uint64(block.key) & low
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
