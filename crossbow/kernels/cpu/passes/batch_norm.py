"""Batch normalisation with the running statistics, and with a ReLU after it in the same passes.

oneDNN's primitive adds a channel's values one after the other in float32, so that its error grows with their number.
These passes add up deviations from a number near the mean, as in `rows.py`, so that a large common offset costs no
digits.

Kept for the gradient: the batch's mean, weights / σ and the bias of each column of the grid, and 1 / σ of each channel.
1 / σ is float64: with few values, the terms of a gradient cancel, and the error of 1 / σ² remains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, float64_at, inlined, native_pass
from crossbow.kernels.cpu.emitter import Emitter
from crossbow.kernels.cpu.passes import rows
from crossbow.kernels.cpu.passes.rows import (
    GRID,
    Grid,
    clear,
    column_moments,
    everywhere,
    fold,
    over,
    share,
    spread,
)
from crossbow.kernels.cpu.passes.team import TEAM, team_barrier, team_size, team_thread, threads_for
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import BatchNormBackward, BatchNormInference, BatchNormTraining

MEAN, SCALE, SHIFT, COMMON, SLOPE = range(5)
"""Indices of the columns' numbers: y = (x − mean) · scale + shift, and
dx = (dy − common − (x − mean) · slope) · scale."""

STREAMED = 2**22
"""Minimum size in bytes of a gradient that is written past the cache, so that its operands stay in the cache, unless it
is in place."""


WORKSPACE: dict[str, Any] = dict.fromkeys(("channel_sums", "channel_numbers", "column_sums", "column_numbers"), Address)
"""Workspace for two float64 sums and three numbers of each channel; for each thread, two float64 sums of each column;
and numbers of each column."""
TRAINING = Arguments(
    team=TEAM,
    x=Address,
    y=Address,
    weights=Address,
    bias=Address,
    kept=Address,
    inverse=Address,
    **WORKSPACE,
    running_mean=Address,
    running_variance=Address,
    tasks=Address,
    running_mean_next=Address,
    running_variance_next=Address,
    tasks_next=Address,
    grid=GRID,
    count=int,
    first=int,
    relu=int,
    epsilon=float,
    factor=float,
)
"""kept, inverse: the columns' numbers and 1 / σ of each channel. count: numbers of a channel; first: distance between
the first numbers of two channels. factor: the batch's share in the next running statistics."""
INFERENCE = Arguments(
    team=TEAM,
    x=Address,
    y=Address,
    weights=Address,
    bias=Address,
    column_numbers=Address,
    channel_numbers=Address,
    running_mean=Address,
    running_variance=Address,
    grid=GRID,
    relu=int,
    epsilon=float,
)
GRADIENT = Arguments(
    team=TEAM,
    x=Address,
    dy=Address,
    dx=Address,
    weights_gradient=Address,
    bias_gradient=Address,
    kept=Address,
    inverse=Address,
    **WORKSPACE,
    grid=GRID,
    count=int,
    relu=int,
    streams=int,
)
"""streams: whether dx is written past the cache, unless it is in place."""


@PASSES.kernel(BatchNormTraining)
def training(request: BatchNormTraining) -> PreparedKernel:
    x, setting = request.x, request.setting
    steps, cut, counts = Steps(request), rows.grid(x), setting.fraction is None
    steps.add_team_pass(
        "pass",
        training_pass,
        threads_for(x.nbytes),
        x="input0",
        y="output",
        weights="weights",
        bias="bias" if setting.bias else None,
        kept="kept",
        inverse=("kept", _inverse(cut)),
        **_workspace(steps, cut, threads_for(x.nbytes), moving=True),
        running_mean="running_mean",
        running_variance="running_variance",
        tasks="count" if counts else None,
        running_mean_next="running_mean_next",
        running_variance_next="running_variance_next",
        tasks_next="count_next" if counts else None,
        grid=cut.arguments,
        count=_count(cut),
        first=1 if cut.inner == cut.channels else cut.matrix,  # 1 in channels-last order
        relu=int(setting.relu),
        epsilon=setting.epsilon,
        factor=-1.0 if setting.fraction is None else 1 - setting.fraction,
    )
    return steps.prepared(kept=_inverse(cut) + 8 * cut.channels)


@PASSES.kernel(BatchNormInference)
def inference(request: BatchNormInference) -> PreparedKernel:
    x, setting = request.x, request.setting
    steps, cut = Steps(request), rows.grid(x)
    steps.add_team_pass(
        "pass",
        inference_pass,
        threads_for(x.nbytes),
        x="input0",
        y="output",
        weights="weights",
        bias="bias" if setting.bias else None,
        column_numbers=steps.reserve(3 * 4 * cut.columns),
        channel_numbers=steps.reserve(3 * 4 * cut.channels),
        running_mean="running_mean",
        running_variance="running_variance",
        grid=cut.arguments,
        relu=int(setting.relu),
        epsilon=setting.epsilon,
    )
    return steps.prepared()


@PASSES.kernel(BatchNormBackward)
def backward(request: BatchNormBackward) -> PreparedKernel:
    x, dx, setting = request.x, request.dx, request.setting
    steps, cut = Steps(request), rows.grid(x)
    steps.add_team_pass(
        "pass",
        backward_pass,
        threads_for(x.nbytes),
        x="input0",
        dy="output_gradient",
        dx="input_gradient" if dx is not None else None,
        weights_gradient="weights_gradient",
        bias_gradient="bias_gradient" if setting.bias else None,
        kept="kept",
        inverse=("kept", _inverse(cut)),
        **_workspace(steps, cut, threads_for(x.nbytes), moving=False),
        grid=cut.arguments,
        count=_count(cut),
        relu=int(setting.relu),
        streams=int(x.nbytes >= STREAMED and cut.matrix % rows.LANES == 0),
    )
    return steps.prepared()


def _count(cut: Grid) -> int:
    """Number of elements of a channel."""
    return cut.outer * cut.groups * cut.matrix // cut.channels


def _inverse(cut: Grid) -> int:
    """Offset in bytes of the kept 1 / σ, which is float64, after three numbers for each column."""
    return -(-3 * 4 * cut.columns // 8) * 8


def _workspace(steps: Steps, cut: Grid, threads: int, *, moving: bool) -> dict[str, Place]:
    """Reserve the workspace. moving: whether `column_moments` needs two numbers for each column and thread; otherwise
    the gradient needs five for each column."""
    sizes = {
        "channel_sums": 2 * 8 * cut.channels,
        "channel_numbers": 3 * 4 * cut.channels,
        "column_sums": 4 * cut.columns * (4 * threads),
        "column_numbers": 4 * cut.columns * (2 * threads if moving else 5),
    }
    return {name: steps.reserve(size) for name, size in sizes.items()}


# Steps of the passes; see `rows.py`


def _normalised(code: Emitter, values: Sequence[Any], numbers: Sequence[Any]) -> Any:
    builder = code.builder
    return builder.fadd(builder.fmul(builder.fsub(values[0], numbers[0]), numbers[1]), numbers[2])


def _rectified(code: Emitter, values: Sequence[Any], numbers: Sequence[Any]) -> Any:
    normalised = _normalised(code, values, numbers)
    return code.floored(normalised, code.constant(0.0))


def _of_relu(code: Emitter, values: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """dy times the derivative of a ReLU: 0 if the normalised value is ≤ 0, else 1. It is a product, so that non-finite
    gradients propagate."""
    builder, zero, one = code.builder, code.constant(0.0), code.constant(1.0)
    flat = builder.fcmp_ordered("<=", _normalised(code, values, numbers), zero)
    return builder.fmul(values[1], builder.select(flat, zero, one))


def _products(code: Emitter, values: Sequence[Any], numbers: Sequence[Any], relu: bool = False) -> tuple[Any, ...]:
    gradient = _of_relu(code, values, numbers) if relu else values[1]
    return gradient, code.builder.fmul(gradient, code.builder.fsub(values[0], numbers[0]))


def _products_relu(code: Emitter, values: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, ...]:
    return _products(code, values, numbers, relu=True)


def _gradient(code: Emitter, values: Sequence[Any], numbers: Sequence[Any], relu: bool = False) -> Any:
    builder, gradient = code.builder, _of_relu(code, values, numbers) if relu else values[1]
    along = builder.fmul(builder.fsub(values[0], numbers[MEAN]), numbers[SLOPE])
    return builder.fmul(builder.fsub(builder.fsub(gradient, numbers[COMMON]), along), numbers[SCALE])


def _gradient_relu(code: Emitter, values: Sequence[Any], numbers: Sequence[Any]) -> Any:
    return _gradient(code, values, numbers, relu=True)


_normalise = over(1, (MEAN, SCALE, SHIFT), _normalised)
_normalise_relu = over(1, (MEAN, SCALE, SHIFT), _rectified)
_sum_products = over(2, (MEAN,), _products, sums=2)
_sum_products_relu = over(2, (MEAN, SCALE, SHIFT), _products_relu, sums=2)
_gradients = over(2, (MEAN, SCALE, SHIFT, COMMON, SLOPE), _gradient)
_gradients_relu = over(2, (MEAN, SCALE, SHIFT, COMMON, SLOPE), _gradient_relu)


_stream = over(2, (MEAN, SCALE, SHIFT, COMMON, SLOPE), _gradient, past_cache=True)
_stream_relu = over(2, (MEAN, SCALE, SHIFT, COMMON, SLOPE), _gradient_relu, past_cache=True)
_normalise_everywhere, _normalise_relu_everywhere = everywhere(_normalise), everywhere(_normalise_relu)
_products_everywhere, _products_relu_everywhere = everywhere(_sum_products), everywhere(_sum_products_relu)
_gradients_everywhere, _gradients_relu_everywhere = everywhere(_gradients), everywhere(_gradients_relu)
_stream_everywhere, _stream_relu_everywhere = everywhere(_stream), everywhere(_stream_relu)
_moments_everywhere = everywhere(column_moments)


# The passes


@inlined
def _moments(grid: Any, thread: int, threads: int, x: int, first: int, known: int, totals: int) -> None:
    """A thread's Σ (x − origin) and Σ (x − origin)² for every column; the origin is the channel's first number.

    known: memory for the columns' numbers near the mean, and for their origins. The former are updated from block to
    block. The first block is added up twice, so that its number is near the mean, too.
    """
    values = float32_at(x)
    wide, height = 4 * grid.groups * grid.width, grid.height
    near, origin = float32_at(known), float32_at(known + wide)
    for group in range(grid.groups):
        for index in range(grid.width):
            column = group * grid.width + index
            near[column] = origin[column] = values[(group + index % grid.inner) * first]
    start = share(grid.outer, thread, threads) * grid.groups * grid.matrix
    count = grid.rows
    if grid.outer == 1:
        start = share(grid.rows, thread, threads) * grid.width
        count = share(grid.rows, thread + 1, threads) - share(grid.rows, thread, threads)
    if count > 0 and start < grid.outer * grid.groups * grid.matrix:
        for group in range(grid.groups):
            column = group * grid.width
            at = x + 4 * (start + group * grid.matrix)
            column_moments(
                at, 0, 0, min(count, height), grid.width, height, known + 4 * column, wide, totals + 8 * column
            )
    clear(totals, 2 * grid.groups * grid.width)
    _moments_everywhere(grid, thread, threads, x, 0, 0, known, wide, totals)


@inlined
def _statistics(block: Any) -> None:
    """Compute the batch's statistics from the sums of all columns. They are stored as the channels' numbers (mean,
    factor and bias), in the memory for 1 / σ, and over the sums (mean and variance)."""
    channels, first, part = block.grid.channels, block.first, 1.0 / block.count
    sums, squares = float64_at(block.channel_sums), float64_at(block.channel_sums + 8 * channels)
    values, weights, bias = float32_at(block.x), float32_at(block.weights), float32_at(block.bias)
    numbers, inverse = float32_at(block.channel_numbers), float64_at(block.inverse)
    for channel in range(channels):
        distance = sums[channel] * part
        variance = (squares[channel] - sums[channel] * distance) * part
        variance = 0.0 if variance < 0 else variance  # not max(): NaN is not hidden
        numbers[channel] = np.float32(np.float64(values[channel * first]) + distance)
        squares[channel] = variance
        inverse[channel] = 1.0 / math.sqrt(variance + block.epsilon)
        sums[channel] = np.float64(values[channel * first]) + distance
    for channel in range(channels):
        numbers[channels + channel] = np.float32(weights[channel] * inverse[channel])
        numbers[2 * channels + channel] = bias[channel] if block.bias != 0 else np.float32(0)


@inlined
def _observe(block: Any) -> None:
    """Compute the next running statistics. The batch's share in them is `factor` or, with a count of tasks, the share
    that makes them the mean over all tasks."""
    factor, channels, count = block.factor, block.grid.channels, block.count
    if block.tasks != 0:
        tasks = float32_at(block.tasks)[0]
        factor = 1.0 / (1.0 + tasks)
        float32_at(block.tasks_next)[0] = tasks + 1
    unbiased = factor * count / max(count - 1, 1)
    mean, variance = float64_at(block.channel_sums), float64_at(block.channel_sums + 8 * channels)
    running_mean, running_variance = float32_at(block.running_mean), float32_at(block.running_variance)
    mean_next, variance_next = float32_at(block.running_mean_next), float32_at(block.running_variance_next)
    for channel in range(channels):
        mean_next[channel] = (1 - factor) * running_mean[channel] + factor * mean[channel]
        variance_next[channel] = (1 - factor) * running_variance[channel] + unbiased * variance[channel]


@inlined
def _fold_threads(grid: Any, threads: int, sums: int, totals: int) -> None:
    """Add up the two sums of each channel from the sums of all columns and threads."""
    columns, channels = grid.groups * grid.width, grid.channels
    clear(totals, 2 * channels)
    for thread in range(threads):
        for which in range(2):
            fold(grid, sums + 8 * columns * (2 * thread + which), totals + 8 * channels * which)


@inlined
def _spread_all(grid: Any, count: int, channels: int, columns: int) -> None:
    """Copy `count` rows of the channels' numbers to the channels' columns."""
    for row in range(count):
        spread(grid, channels + 4 * row * grid.channels, columns + 4 * row * grid.groups * grid.width)


@inlined
def _write(grid: Any, relu: int, thread: int, threads: int, x: int, y: int, columns: int) -> None:
    wide = 4 * grid.groups * grid.width
    if relu != 0:
        _normalise_relu_everywhere(grid, thread, threads, x, 0, y, columns, wide, 0)
    else:
        _normalise_everywhere(grid, thread, threads, x, 0, y, columns, wide, 0)


@native_pass(TRAINING)
def training_pass(block: Any) -> int:
    grid, thread, threads = block.grid, team_thread(block.team), team_size(block.team)
    columns, sums = grid.groups * grid.width, block.column_sums
    near, own = block.column_numbers + 8 * columns * thread, sums + 16 * columns * thread
    _moments(grid, thread, threads, block.x, block.first, near, own)
    team_barrier(block.team)
    if thread == 0:
        _fold_threads(grid, threads, sums, block.channel_sums)
        _statistics(block)
        _spread_all(grid, 3, block.channel_numbers, block.kept)
        _observe(block)
    team_barrier(block.team)
    _write(grid, block.relu, thread, threads, block.x, block.y, block.kept)
    return 0


@inlined
def _running(block: Any) -> None:
    """Compute the channels' numbers (mean, factor and bias) from the running statistics."""
    channels, numbers = block.grid.channels, float32_at(block.channel_numbers)
    weights, bias = float32_at(block.weights), float32_at(block.bias)
    mean, variance = float32_at(block.running_mean), float32_at(block.running_variance)
    for channel in range(channels):
        inverse = 1.0 / math.sqrt(np.float64(variance[channel]) + block.epsilon)
        numbers[channel] = mean[channel]
        numbers[channels + channel] = np.float32(weights[channel] * inverse)
        numbers[2 * channels + channel] = bias[channel] if block.bias != 0 else np.float32(0)


@native_pass(INFERENCE)
def inference_pass(block: Any) -> int:
    thread, threads = team_thread(block.team), team_size(block.team)
    if thread == 0:
        _running(block)
        _spread_all(block.grid, 3, block.channel_numbers, block.column_numbers)
    team_barrier(block.team)
    _write(block.grid, block.relu, thread, threads, block.x, block.y, block.column_numbers)
    return 0


@inlined
def _variable_gradients(block: Any) -> None:
    """Compute the gradients of weights and bias, and the offset and slope that all gradients of a channel share."""
    channels, part = block.grid.channels, 1.0 / block.count
    sums, products = float64_at(block.channel_sums), float64_at(block.channel_sums + 8 * channels)
    weights_gradient, bias_gradient = float32_at(block.weights_gradient), float32_at(block.bias_gradient)
    inverse, numbers = float64_at(block.inverse), float32_at(block.channel_numbers)
    for channel in range(channels):
        along = products[channel] * inverse[channel]
        weights_gradient[channel] = np.float32(along)
        numbers[channel] = np.float32(sums[channel] * part)
        numbers[channels + channel] = np.float32(along * part * inverse[channel])
    if block.bias_gradient != 0:
        for channel in range(channels):
            bias_gradient[channel] = np.float32(sums[channel])


@native_pass(GRADIENT)
def backward_pass(block: Any) -> int:
    grid, thread, threads = block.grid, team_thread(block.team), team_size(block.team)
    x, dy, dx, kept, numbers = block.x, block.dy, block.dx, block.kept, block.column_numbers
    columns = grid.groups * grid.width
    own, wide = block.column_sums + 16 * columns * thread, 4 * columns
    clear(own, 2 * columns)
    if block.relu != 0:
        _products_relu_everywhere(grid, thread, threads, x, dy, 0, kept, wide, own)
    else:
        _products_everywhere(grid, thread, threads, x, dy, 0, kept, wide, own)
    team_barrier(block.team)
    if thread == 0:
        _fold_threads(grid, threads, block.column_sums, block.channel_sums)
        _variable_gradients(block)
        source, target = float32_at(kept), float32_at(numbers)
        for index in range(3 * columns):
            target[index] = source[index]
        _spread_all(grid, 2, block.channel_numbers, numbers + 3 * wide)
    team_barrier(block.team)
    if dx == 0:
        return 0
    streams = block.streams != 0 and dy != dx
    if block.relu != 0 and streams:
        _stream_relu_everywhere(grid, thread, threads, x, dy, dx, numbers, wide, 0)
    elif block.relu != 0:
        _gradients_relu_everywhere(grid, thread, threads, x, dy, dx, numbers, wide, 0)
    elif streams:
        _stream_everywhere(grid, thread, threads, x, dy, dx, numbers, wide, 0)
    else:
        _gradients_everywhere(grid, thread, threads, x, dy, dx, numbers, wide, 0)
    return 0
