"""Sums of many numbers: the gradient of a bias, and averages over whole images.

Their errors do not grow with the number of terms (`rows.py`); oneDNN adds up one term after the other in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, float64_at, inlined, native_pass
from crossbow.kernels.cpu.passes import rows
from crossbow.kernels.cpu.passes.rows import GRID, clear, column_sums, everywhere, fold, share
from crossbow.kernels.cpu.passes.team import TEAM, team_barrier, team_size, team_thread, threads_for
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import PoolingForward

BIAS_GRADIENT = Arguments(team=TEAM, matrix=Address, sums=Address, channel_sums=Address, column_sums=Address, grid=GRID)
"""matrix, sums: operand and result. channel_sums, column_sums: workspace for the sums of channels, and of each thread's
columns."""
AVERAGES = Arguments(team=TEAM, x=Address, y=Address, channel_sums=Address, column_sums=Address, grid=GRID, pixels=int)
"""As in `BIAS_GRADIENT`, but each thread has its own channel_sums. pixels: pixels of an image."""


def add_bias_gradient(steps: Steps, positions: int, outputs: int, output_gradient: Place = "output_gradient") -> None:
    """Append bias_gradient = Σ output_gradient over `positions` rows of `outputs` contiguous numbers."""
    cut = rows.pixels(positions, outputs)
    threads = threads_for(4 * positions * outputs)
    steps.add_team_pass(
        "bias gradient",
        channel_sums,
        threads,
        matrix=output_gradient,
        sums="bias_gradient",
        channel_sums=steps.reserve(8 * cut.channels),
        column_sums=steps.reserve(8 * cut.columns * threads),
        grid=cut.arguments,
    )


def image_averages(request: PoolingForward) -> PreparedKernel:
    """Averages of whole images, channels last: (N, C, H, W) → (N, C, 1, 1)."""
    x = request.x
    images, channels, height, width = x.shape
    cut = rows.pixels(height * width, channels, images)
    steps, threads = Steps(request, "of whole images"), threads_for(x.nbytes)
    steps.add_team_pass(
        "average",
        averages,
        threads,
        x="input0",
        y="output",
        channel_sums=steps.reserve(8 * cut.channels * threads),
        column_sums=steps.reserve(8 * cut.columns * threads),
        grid=cut.arguments,
        pixels=height * width,
    )
    return steps.prepared()


_sums_everywhere = everywhere(column_sums)


@inlined
def _rounded(source: int, target: int, count: int, factor: float) -> None:
    sums, values = float64_at(source), float32_at(target)
    for index in range(count):
        values[index] = np.float32(sums[index] * factor)


@native_pass(BIAS_GRADIENT)
def channel_sums(block: Any) -> int:
    grid, thread, threads = block.grid, team_thread(block.team), team_size(block.team)
    own = block.column_sums + 8 * grid.width * thread
    clear(own, grid.width)
    _sums_everywhere(grid, thread, threads, block.matrix, 0, 0, 0, 4 * grid.width, own)
    team_barrier(block.team)
    if thread == 0:
        clear(block.channel_sums, grid.channels)
        for number in range(threads):
            fold(grid, block.column_sums + 8 * grid.width * number, block.channel_sums)
        _rounded(block.channel_sums, block.sums, grid.channels, 1.0)
    return 0


@native_pass(AVERAGES)
def averages(block: Any) -> int:
    grid, thread, threads = block.grid, team_thread(block.team), team_size(block.team)
    own = block.column_sums + 8 * grid.width * thread
    totals = block.channel_sums + 8 * grid.channels * thread
    for image in range(share(grid.outer, thread, threads), share(grid.outer, thread + 1, threads)):
        x, wide = block.x + 4 * image * grid.matrix, 4 * grid.width
        clear(own, grid.width)
        column_sums(x, 0, 0, grid.rows, grid.width, grid.height, 0, wide, own)
        if grid.rest > 0:
            column_sums(x + 4 * grid.rows * grid.width, 0, 0, 1, grid.rest, 1, 0, wide, own)
        clear(totals, grid.channels)
        fold(grid, own, totals)
        _rounded(totals, block.y + 4 * image * grid.channels, grid.channels, 1.0 / block.pixels)
    return 0
