"""Batch normalisation: passes of our own, with the ReLU behind in the same ones, and with the running statistics.

oneDNN's primitive adds a channel's values one after the other in float32, so that its error grows with their number.
These sums are those of `rows.py`, of deviations from a number near the mean, so that what all values have in common is
gone before anything is rounded.

What is kept for the gradient: the batch's mean, weights / σ and the bias for every column of the grid, and 1 / σ for
every channel. This one is in float64: where the terms of a gradient cancel, as they do with few values, an error of its
square is what is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.kernels.compiled import float32_at, float64_at, inlined, int64_at, native
from crossbow.kernels.cpu.passes import rows
from crossbow.kernels.cpu.passes.rows import (
    CHANNELS,
    GRID_SLOTS,
    GROUPS,
    HEIGHT,
    INNER,
    MATRIX,
    OUTER,
    ROWS,
    WIDTH,
    Grid,
    clear,
    column_moments,
    everywhere,
    fold,
    over,
    share,
    spread,
)
from crossbow.kernels.cpu.passes.team import TEAM_SLOTS, team_barrier, team_size, team_thread, threads_for
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import BatchNormBackward, BatchNormInference, BatchNormTraining

MEAN, SCALE, SHIFT, COMMON, SLOPE = range(5)
"""The columns' numbers, as far as a pass has them: y = (x − mean) · scale + shift, and
dx = (dy − common − (x − mean) · slope) · scale."""

STREAMED = 2**22
"""Bytes from which a gradient that is not in place is written past the cache, which its operands need."""


@PASSES.kernel(BatchNormTraining)
def training(request: BatchNormTraining) -> PreparedKernel:
    x, setting = request.x, request.setting
    steps, cut = Steps(request), rows.grid(x)
    following = tuple(f"{name}_next" for name in setting.observed)
    places: list[Place] = ["input0", "output", "weights", "bias" if setting.bias else None, "kept"]
    places += [("kept", _inverse(cut)), *_room(steps, cut, threads_for(x.nbytes), moving=True)]
    count: list[Place] = [] if setting.fraction is None else [None]
    places += [*setting.observed, *count, *following, *count]
    factor = -1.0 if setting.fraction is None else 1 - setting.fraction
    # Where each channel's first number lies: in channels-last order beside the one before.
    first = 1 if cut.inner == cut.channels else cut.matrix
    numbers = (cut.outer * cut.groups * cut.matrix // cut.channels, first, int(setting.relu))
    steps.add_team_pass(
        "pass", training_pass, threads_for(x.nbytes), places, *cut.slots, *numbers, setting.epsilon, factor
    )
    return steps.prepared(kept=_inverse(cut) + 8 * cut.channels)


@PASSES.kernel(BatchNormInference)
def inference(request: BatchNormInference) -> PreparedKernel:
    x, setting = request.x, request.setting
    steps, cut = Steps(request), rows.grid(x)
    places: list[Place] = ["input0", "output", "weights", "bias" if setting.bias else None]
    places += [steps.reserve(3 * 4 * cut.columns), steps.reserve(3 * 4 * cut.channels)]
    places += ["running_mean", "running_variance"]
    steps.add_team_pass(
        "pass", inference_pass, threads_for(x.nbytes), places, *cut.slots, int(setting.relu), setting.epsilon
    )
    return steps.prepared()


@PASSES.kernel(BatchNormBackward)
def backward(request: BatchNormBackward) -> PreparedKernel:
    x, dx, setting = request.x, request.dx, request.setting
    steps, cut = Steps(request), rows.grid(x)
    places: list[Place] = ["input0", "output_gradient", "input_gradient" if dx is not None else None]
    places += ["weights_gradient", "bias_gradient" if setting.bias else None, "kept", ("kept", _inverse(cut))]
    places += _room(steps, cut, threads_for(x.nbytes), moving=False)
    streams = x.nbytes >= STREAMED and cut.matrix % rows.LANES == 0
    numbers = (cut.outer * cut.groups * cut.matrix // cut.channels, int(setting.relu), int(streams))
    steps.add_team_pass("pass", backward_pass, threads_for(x.nbytes), places, *cut.slots, *numbers)
    return steps.prepared()


def _inverse(cut: Grid) -> int:
    """Where 1 / σ is kept, in bytes: in float64, after three numbers for each column."""
    return -(-3 * 4 * cut.columns // 8) * 8


def _room(steps: Steps, cut: Grid, threads: int, *, moving: bool) -> Sequence[Place]:
    """Room for two sums of every channel, for three numbers of it, and, for each thread, sums of every column and the
    numbers that they need (training), or the columns' numbers (the gradient)."""
    own = 4 * cut.columns * (4 * threads)
    more = 4 * cut.columns * (2 * threads if moving else 5)
    return [steps.reserve(size) for size in (2 * 8 * cut.channels, 3 * 4 * cut.channels, own, more)]


# Steps of the passes; see `rows.py`.


def _normalised(code: Any, values: Sequence[Any], numbers: Sequence[Any]) -> Any:
    builder = code.builder
    return builder.fadd(builder.fmul(builder.fsub(values[0], numbers[0]), numbers[1]), numbers[2])


def _rectified(code: Any, values: Sequence[Any], numbers: Sequence[Any]) -> Any:
    normalised = _normalised(code, values, numbers)
    # "Less than" is false of what is not a number, which stays what it is.
    return code.builder.select(code.below(normalised), code.number(code.single, 0.0), normalised)


def _of_relu(code: Any, values: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """dy times the derivative of a ReLU: 0 where the normalised value is ≤ 0, else 1. A product, so that what is not
    finite is not hidden."""
    derivative = (code.number(code.single, value) for value in (0.0, 1.0))
    return code.builder.fmul(
        values[1], code.builder.select(code.not_above(_normalised(code, values, numbers)), *derivative)
    )


def _products(code: Any, values: Sequence[Any], numbers: Sequence[Any], relu: bool = False) -> tuple[Any, ...]:
    gradient = _of_relu(code, values, numbers) if relu else values[1]
    return gradient, code.builder.fmul(gradient, code.builder.fsub(values[0], numbers[0]))


def _products_relu(code: Any, values: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, ...]:
    return _products(code, values, numbers, relu=True)


def _gradient(code: Any, values: Sequence[Any], numbers: Sequence[Any], relu: bool = False) -> Any:
    builder, gradient = code.builder, _of_relu(code, values, numbers) if relu else values[1]
    along = builder.fmul(builder.fsub(values[0], numbers[MEAN]), numbers[SLOPE])
    return builder.fmul(builder.fsub(builder.fsub(gradient, numbers[COMMON]), along), numbers[SCALE])


def _gradient_relu(code: Any, values: Sequence[Any], numbers: Sequence[Any]) -> Any:
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


# The passes. Their blocks begin with the slots of the team; what follows is counted from there.


@inlined
def _moments(sizes: int, thread: int, threads: int, x: int, first: int, known: int, totals: int) -> None:
    """A thread's Σ (x − origin) and Σ (x − origin)² for every column; the origin is the channel's first number.

    known: room for the columns' numbers near the mean, and their origins. The former are moved along, from block to
    block; so that the first one is near too, it is added up twice.
    """
    s, values = int64_at(sizes), float32_at(x)
    wide, height = 4 * s[GROUPS] * s[WIDTH], s[HEIGHT]
    near, origin = float32_at(known), float32_at(known + wide)
    for group in range(s[GROUPS]):
        for index in range(s[WIDTH]):
            column = group * s[WIDTH] + index
            near[column] = origin[column] = values[(group + index % s[INNER]) * first]
    start = share(s[OUTER], thread, threads) * s[GROUPS] * s[MATRIX]
    count = s[ROWS]
    if s[OUTER] == 1:
        start = share(s[ROWS], thread, threads) * s[WIDTH]
        count = share(s[ROWS], thread + 1, threads) - share(s[ROWS], thread, threads)
    if count > 0 and start < s[OUTER] * s[GROUPS] * s[MATRIX]:
        for group in range(s[GROUPS]):
            column = group * s[WIDTH]
            at = x + 4 * (start + group * s[MATRIX])
            column_moments(
                at, 0, 0, min(count, height), s[WIDTH], height, known + 4 * column, wide, totals + 8 * column
            )
    clear(totals, 2 * s[GROUPS] * s[WIDTH])
    _moments_everywhere(sizes, thread, threads, x, 0, 0, known, wide, totals)


@inlined
def _statistics(b: Any, epsilon: float, channels: int, count: int, first: int) -> None:
    """The batch's statistics from the sums of all columns: mean, factor and bias in the channels' room, 1 / σ where it
    is kept, and the variance instead of the squares."""
    sums, squares, part = float64_at(b[6]), float64_at(b[6] + 8 * channels), 1.0 / count
    values, weights, bias = float32_at(b[0]), float32_at(b[2]), float32_at(b[3])
    numbers, inverse = float32_at(b[7]), float64_at(b[5])
    for channel in range(channels):
        distance = sums[channel] * part
        variance = (squares[channel] - sums[channel] * distance) * part
        variance = 0.0 if variance < 0 else variance  # not max(): NaN is not hidden
        numbers[channel] = np.float32(np.float64(values[channel * first]) + distance)
        squares[channel] = variance
        inverse[channel] = 1.0 / math.sqrt(variance + epsilon)
        sums[channel] = np.float64(values[channel * first]) + distance
    for channel in range(channels):
        numbers[channels + channel] = np.float32(weights[channel] * inverse[channel])
        numbers[2 * channels + channel] = bias[channel] if b[3] != 0 else np.float32(0)


@inlined
def _observe(b: Any, factor: float, channels: int, count: int) -> None:
    """The next running statistics. factor: what is taken of the batch's; with a count, that of the mean of all."""
    if b[12] != 0:
        tasks = float32_at(b[12])[0]
        factor = 1.0 / (1.0 + tasks)
        float32_at(b[15])[0] = tasks + 1
    unbiased = factor * count / max(count - 1, 1)
    mean, variance = float64_at(b[6]), float64_at(b[6] + 8 * channels)
    running_mean, running_variance = float32_at(b[10]), float32_at(b[11])
    mean_next, variance_next = float32_at(b[13]), float32_at(b[14])
    for channel in range(channels):
        mean_next[channel] = (1 - factor) * running_mean[channel] + factor * mean[channel]
        variance_next[channel] = (1 - factor) * running_variance[channel] + unbiased * variance[channel]


@inlined
def _fold_threads(sizes: int, threads: int, sums: int, totals: int) -> None:
    """The two sums of every channel from those of every column and thread."""
    s = int64_at(sizes)
    columns, channels = s[GROUPS] * s[WIDTH], s[CHANNELS]
    clear(totals, 2 * channels)
    for thread in range(threads):
        for which in range(2):
            fold(sizes, sums + 8 * columns * (2 * thread + which), totals + 8 * channels * which)


@inlined
def _spread_all(sizes: int, count: int, channels: int, columns: int) -> None:
    """So many rows of numbers, from those for channels to those for columns."""
    s = int64_at(sizes)
    for row in range(count):
        spread(sizes, channels + 4 * row * s[CHANNELS], columns + 4 * row * s[GROUPS] * s[WIDTH])


@inlined
def _write(sizes: int, relu: int, thread: int, threads: int, x: int, y: int, columns: int) -> None:
    wide = 4 * int64_at(sizes)[GROUPS] * int64_at(sizes)[WIDTH]
    if relu != 0:
        _normalise_relu_everywhere(sizes, thread, threads, x, 0, y, columns, wide, 0)
    else:
        _normalise_everywhere(sizes, thread, threads, x, 0, y, columns, wide, 0)


@native
def training_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Addresses: x, y, weights, bias (or 0), what is kept for columns, for channels; room: channels' sums, channels'
    numbers, columns' sums, columns' numbers; running mean, variance, count (or 0), and where the next ones go. Then the
    grid; numbers in a channel, distance of the channels' first ones, whether there is a ReLU; ε, what is taken of the
    new statistics."""
    b = int64_at(np.int64(arguments) + 8 * TEAM_SLOTS)
    sizes, more = np.int64(arguments) + 8 * (TEAM_SLOTS + 16), np.int64(arguments) + 8 * (TEAM_SLOTS + 16 + GRID_SLOTS)
    s, n, floats = int64_at(sizes), int64_at(more), float64_at(more)
    thread, threads, columns = team_thread(arguments), team_size(arguments), s[GROUPS] * s[WIDTH]
    _moments(sizes, thread, threads, b[0], n[1], b[9] + 8 * columns * thread, b[8] + 16 * columns * thread)
    team_barrier(arguments)
    if thread == 0:
        _fold_threads(sizes, threads, b[8], b[6])
        _statistics(b, floats[3], s[CHANNELS], n[0], n[1])
        _spread_all(sizes, 3, b[7], b[4])
        _observe(b, floats[4], s[CHANNELS], n[0])
    team_barrier(arguments)
    _write(sizes, n[2], thread, threads, b[0], b[1], b[4])
    return 0


@inlined
def _running(b: Any, epsilon: float, channels: int) -> None:
    """Mean, factor and bias from the running statistics, in the channels' room."""
    weights, bias, mean, variance = float32_at(b[2]), float32_at(b[3]), float32_at(b[6]), float32_at(b[7])
    numbers = float32_at(b[5])
    for channel in range(channels):
        inverse = 1.0 / math.sqrt(np.float64(variance[channel]) + epsilon)
        numbers[channel] = mean[channel]
        numbers[channels + channel] = np.float32(weights[channel] * inverse)
        numbers[2 * channels + channel] = bias[channel] if b[3] != 0 else np.float32(0)


@native
def inference_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Addresses: x, y, weights, bias (or 0), room for columns' and for channels' numbers, running mean, variance. Then
    the grid; whether there is a ReLU; ε."""
    b = int64_at(np.int64(arguments) + 8 * TEAM_SLOTS)
    sizes, more = np.int64(arguments) + 8 * (TEAM_SLOTS + 8), np.int64(arguments) + 8 * (TEAM_SLOTS + 8 + GRID_SLOTS)
    thread, threads = team_thread(arguments), team_size(arguments)
    if thread == 0:
        _running(b, float64_at(more)[1], int64_at(sizes)[CHANNELS])
        _spread_all(sizes, 3, b[5], b[4])
    team_barrier(arguments)
    _write(sizes, int64_at(more)[0], thread, threads, b[0], b[1], b[4])
    return 0


@inlined
def _variable_gradients(b: Any, channels: int, count: int) -> None:
    """Those of weights and bias, and what all of a channel's gradients have in common: an offset and a slope."""
    sums, products, part = float64_at(b[7]), float64_at(b[7] + 8 * channels), 1.0 / count
    weights_gradient, bias_gradient = float32_at(b[3]), float32_at(b[4])
    inverse, numbers = float64_at(b[6]), float32_at(b[8])
    for channel in range(channels):
        along = products[channel] * inverse[channel]
        weights_gradient[channel] = np.float32(along)
        numbers[channel] = np.float32(sums[channel] * part)
        numbers[channels + channel] = np.float32(along * part * inverse[channel])
    if b[4] != 0:
        for channel in range(channels):
            bias_gradient[channel] = np.float32(sums[channel])


@native
def backward_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Addresses: x, dy, dx (or 0), gradients of weights, of bias (or 0), what is kept for columns, for channels; room:
    channels' sums, channels' numbers, columns' sums, columns' numbers. Then the grid; numbers in a channel, whether
    there is a ReLU, whether dx is written past the cache where it is not dy."""
    b = int64_at(np.int64(arguments) + 8 * TEAM_SLOTS)
    sizes, more = np.int64(arguments) + 8 * (TEAM_SLOTS + 11), np.int64(arguments) + 8 * (TEAM_SLOTS + 11 + GRID_SLOTS)
    s, n = int64_at(sizes), int64_at(more)
    thread, threads, columns = team_thread(arguments), team_size(arguments), s[GROUPS] * s[WIDTH]
    own, wide = b[9] + 16 * columns * thread, 4 * columns
    clear(own, 2 * columns)
    if n[1] != 0:
        _products_relu_everywhere(sizes, thread, threads, b[0], b[1], 0, b[5], wide, own)
    else:
        _products_everywhere(sizes, thread, threads, b[0], b[1], 0, b[5], wide, own)
    team_barrier(arguments)
    if thread == 0:
        _fold_threads(sizes, threads, b[9], b[7])
        _variable_gradients(b, s[CHANNELS], n[0])
        kept, numbers = float32_at(b[5]), float32_at(b[10])
        for index in range(3 * columns):
            numbers[index] = kept[index]
        _spread_all(sizes, 2, b[8], b[10] + 3 * wide)
    team_barrier(arguments)
    if b[2] == 0:
        return 0
    streams = n[2] != 0 and b[1] != b[2]
    if n[1] != 0 and streams:
        _stream_relu_everywhere(sizes, thread, threads, b[0], b[1], b[2], b[10], wide, 0)
    elif n[1] != 0:
        _gradients_relu_everywhere(sizes, thread, threads, b[0], b[1], b[2], b[10], wide, 0)
    elif streams:
        _stream_everywhere(sizes, thread, threads, b[0], b[1], b[2], b[10], wide, 0)
    else:
        _gradients_everywhere(sizes, thread, threads, b[0], b[1], b[2], b[10], wide, 0)
    return 0
