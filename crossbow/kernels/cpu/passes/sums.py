"""Sums of many numbers: the gradient of a bias, and averages over whole images.

Their errors do not grow with the number of terms (`rows.py`); oneDNN adds up one term after the other in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.compiled import float32_at, float64_at, inlined, int64_at, native
from crossbow.kernels.cpu.passes import rows
from crossbow.kernels.cpu.passes.rows import (
    CHANNELS,
    GRID_SLOTS,
    HEIGHT,
    MATRIX,
    OUTER,
    REST,
    ROWS,
    WIDTH,
    Grid,
    clear,
    column_sums,
    everywhere,
    fold,
    share,
)
from crossbow.kernels.cpu.passes.team import TEAM_SLOTS, team_barrier, team_size, team_thread, threads_for
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import PoolingForward


def add_bias_gradient(steps: Steps, positions: int, outputs: int, output_gradient: Place = "output_gradient") -> None:
    """Append bias_gradient = Σ output_gradient, so many positions of so many outputs, these last in memory."""
    cut = rows.pixels(positions, outputs)
    threads = threads_for(4 * positions * outputs)
    room: list[Place] = [steps.reserve(8 * cut.channels), steps.reserve(8 * cut.columns * threads)]
    places: Sequence[Place] = (output_gradient, "bias_gradient", *room)
    steps.add_team_pass("bias gradient", channel_sums, threads, places, *cut.slots)


def image_averages(request: PoolingForward) -> PreparedKernel:
    """Averages of whole images, channels last: (N, C, H, W) → (N, C, 1, 1)."""
    x = request.x
    images, channels, height, width = x.shape
    cut: Grid = rows.pixels(height * width, channels, images)
    steps, threads = Steps(request, "of whole images"), threads_for(x.nbytes)
    room: list[Place] = [steps.reserve(8 * cut.channels * threads), steps.reserve(8 * cut.columns * threads)]
    steps.add_team_pass("average", averages, threads, ("input0", "output", *room), *cut.slots, height * width)
    return steps.prepared()


_sums_everywhere = everywhere(column_sums)
_SIZES = TEAM_SLOTS + 4
"""Where the grid begins in the passes' blocks, behind four addresses."""


@inlined
def _rounded(source: int, target: int, count: int, factor: float) -> None:
    sums, values = float64_at(source), float32_at(target)
    for index in range(count):
        values[index] = np.float32(sums[index] * factor)


@native
def channel_sums(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Addresses: matrix, sums; room for channels' and for columns' sums. Then the grid."""
    b, sizes = int64_at(np.int64(arguments) + 8 * TEAM_SLOTS), np.int64(arguments) + 8 * _SIZES
    s, thread, threads = int64_at(sizes), team_thread(arguments), team_size(arguments)
    own = b[3] + 8 * s[WIDTH] * thread
    clear(own, s[WIDTH])
    _sums_everywhere(sizes, thread, threads, b[0], 0, 0, 0, 4 * s[WIDTH], own)
    team_barrier(arguments)
    if thread == 0:
        clear(b[2], s[CHANNELS])
        for number in range(threads):
            fold(sizes, b[3] + 8 * s[WIDTH] * number, b[2])
        _rounded(b[2], b[1], s[CHANNELS], 1.0)
    return 0


@native
def averages(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Addresses: x, y; room for channels' and for columns' sums. Then the grid, and the pixels of an image."""
    b, sizes = int64_at(np.int64(arguments) + 8 * TEAM_SLOTS), np.int64(arguments) + 8 * _SIZES
    s, thread, threads = int64_at(sizes), team_thread(arguments), team_size(arguments)
    own, totals = b[3] + 8 * s[WIDTH] * thread, b[2] + 8 * s[CHANNELS] * thread
    for image in range(share(s[OUTER], thread, threads), share(s[OUTER], thread + 1, threads)):
        x, wide = b[0] + 4 * image * s[MATRIX], 4 * s[WIDTH]
        clear(own, s[WIDTH])
        column_sums(x, 0, 0, s[ROWS], s[WIDTH], s[HEIGHT], 0, wide, own)
        if s[REST] > 0:
            column_sums(x + 4 * s[ROWS] * s[WIDTH], 0, 0, 1, s[REST], 1, 0, wide, own)
        clear(totals, s[CHANNELS])
        fold(sizes, own, totals)
        _rounded(totals, b[1] + 4 * image * s[CHANNELS], s[CHANNELS], 1.0 / s[GRID_SLOTS])
    return 0
