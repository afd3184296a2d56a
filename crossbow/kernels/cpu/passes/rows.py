"""Passes over rows of channels: sums down the columns, and element-wise arithmetic with a number for each column.

The memory of a tensor is a sequence of matrices, (outer, groups, rows, width), each followed by a partial row of `rest`
numbers. A channels-last tensor is one matrix, whose rows have several pixels, so that few channels fill vectors, too.
In a plain tensor (N, C, …) each channel of an example is a matrix, and all of its columns belong to that channel.

Sums are exact to about the last digit of float32, for any number of terms: blocks of at most BLOCK rows are added up in
float32, column by column, and the sums of blocks in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numba import types
from numba.core import cgutils

from crossbow.kernels.arguments import Arguments
from crossbow.kernels.compiled import float32_at, float64_at, inlined, instruction
from crossbow.kernels.cpu.emitter import Emitter
from crossbow.types import Layout, Tensor

LANES = 16
"""Number of lanes of a vector."""
VECTORS = 4
"""Number of vectors that are processed together, because an addition to a sum waits for the previous one."""
BLOCK = 64
"""Maximum number of rows that are added up in float32."""
TOGETHER = 8
"""Number of rows that are added pairwise before they are added to a sum, for smaller rounding errors."""
FIRST_LEVEL = 2**14
"""Size in bytes of a block, which is read several times, or read and then written: half of a first-level cache."""
WIDEST = 1024
"""Maximum number of columns of a row of several pixels, which fills whole vectors."""

GRID = Arguments(outer=int, groups=int, rows=int, width=int, rest=int, height=int, channels=int, inner=int, matrix=int)
"""A `Grid` in an argument block."""


@dataclass(frozen=True)
class Grid:
    """The division of a tensor's memory into matrices."""

    outer: int
    groups: int
    rows: int
    width: int
    rest: int
    """Columns of the partial row."""
    channels: int
    inner: int
    """Channel of a column: its group + column mod `inner`."""

    @property
    def columns(self) -> int:
        """Columns of all groups."""
        return self.groups * self.width

    @property
    def height(self) -> int:
        """Rows of a block."""
        return max(LANES, min(BLOCK, FIRST_LEVEL // (4 * self.width)))

    @property
    def matrix(self) -> int:
        """Distance from one matrix to the next, in elements."""
        return self.rows * self.width + self.rest

    @property
    def arguments(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in GRID.names}


def grid(x: Tensor) -> Grid:
    """The matrices of a tensor (N, C, …)."""
    images, channels, places = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    if x.layout is Layout.CHANNELS_LAST or places == 1:
        return pixels(images * places, channels)
    if channels == 1:
        return pixels(images * places, 1)
    width = VECTORS * LANES if places >= VECTORS * LANES else LANES
    return Grid(images, channels, places // width, width, places % width, channels, 1)


def pixels(count: int, channels: int, outer: int = 1) -> Grid:
    """The matrices of `outer` channels-last images, each of `count` pixels of `channels` numbers."""
    filled = math.lcm(channels, LANES)
    together = 1
    if filled <= WIDEST:
        together = filled // channels * -(-VECTORS * LANES // filled)
    width = together * channels
    return Grid(outer, 1, count // together, width, count % together * channels, channels, channels)


Step = Callable[[Emitter, Sequence[Any], Sequence[Any]], Any]
"""Function of a number of each operand and the column's parameters. It returns the number to write, or the numbers to
add to the sums."""
_register: Callable[[Any, Any], Any] = cgutils.alloca_once


def _block(operands: int, parameters: Sequence[int], step: Step, sums: int, moving: bool, past_cache: bool) -> Any:
    """Instructions for `rows` rows of `vectors` × `lanes` columns.

    parameters: indices of the rows of numbers that the step reads; rows are `wide` bytes apart. sums: number of sums of
    the step's results, which are added to float64 sums 2 · `wide` bytes apart; with 0, the result is written. moving:
    the sums are Σ d and Σ d² of deviations d from the first parameter; they are converted to deviations from the second
    parameter before they are added, and the first parameter becomes the block's mean.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors, lanes = (kind.literal_value for kind in signature.args[:2])
        a, b, out, rows, stride, base, wide, totals = arguments[2:]
        code, word = Emitter(builder, lanes), Emitter.word
        places = [word(4 * lanes * number) for number in range(vectors)]
        far = {p: builder.mul(wide, word(p)) for p in parameters}
        known = [[code.load(builder.add(base, builder.add(far[p], place))) for p in parameters] for place in places]
        found = [[_register(builder, code.vector(code.single)) for _ in range(sums)] for _ in places]
        for registers in found:
            for register in registers:
                builder.store(code.constant(0.0), register)

        def made(row: Any, place: Any, numbers: Sequence[Any]) -> Any:
            at = builder.add(builder.mul(row, stride), place)
            return step(code, [code.load(builder.add(base_of, at)) for base_of in (a, b)[:operands]], numbers)

        def together(first: Any, count: int) -> None:
            """`count` rows, added pairwise before they are added to the sums. They are read in the order of memory, for
            the prefetcher."""
            open_pairs: list[list[tuple[int, Sequence[Any]]]] = [[] for _ in places]
            for number in range(count):
                row = builder.add(first, word(number))
                for pairs, place, numbers in zip(open_pairs, places, known, strict=True):
                    level, values = 0, made(row, place, numbers)
                    while pairs and pairs[-1][0] == level:
                        level, values = level + 1, _added(builder, pairs.pop()[1], values)
                    pairs.append((level, values))
            for pairs, registers in zip(open_pairs, found, strict=True):
                for register, value in zip(registers, pairs[0][1], strict=True):
                    builder.store(builder.fadd(builder.load(register), value), register)

        if sums:
            whole = builder.and_(rows, word(-TOGETHER))
            with cgutils.for_range_slice(builder, word(0), whole, word(TOGETHER), word) as (first, _):
                together(first, TOGETHER)
            with cgutils.for_range_slice(builder, whole, rows, word(1), word) as (first, _):
                together(first, 1)
        else:
            with cgutils.for_range(builder, rows) as loop:
                for place, numbers in zip(places, known, strict=True):
                    at = builder.add(builder.mul(loop.index, stride), place)
                    code.store(made(loop.index, place, numbers), builder.add(out, at), past_cache=past_cache)
        for place, numbers, registers in zip(places, known, found, strict=True):
            twice = builder.add(place, place)
            values = [code.widened(builder.load(register)) for register in registers]
            if moving:
                count = code.splat(builder.sitofp(rows, code.double))
                values, mean = _moved(code, count, numbers, values)
                code.store(mean, builder.add(base, place))
            for number, value in enumerate(values):
                at = builder.add(totals, builder.add(builder.mul(wide, word(2 * number)), twice))
                code.store(builder.fadd(code.load(at, code.double), value), at)
        return context.get_dummy_value()

    @instruction
    def block(
        typing_context: Any, vectors: Any, lanes: Any, a: Any, b: Any, out: Any, rows: Any, stride: Any,
        parameters: Any, wide: Any, totals: Any,
    ) -> Any:  # fmt: skip
        if not all(isinstance(size, types.IntegerLiteral) for size in (vectors, lanes)):
            return None
        return types.void(vectors, lanes, *[types.int64] * 8), generate

    return block


def _added(builder: Any, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    return [builder.fadd(one, other) for one, other in zip(left, right, strict=True)]


def _moved(code: Emitter, count: Any, numbers: Sequence[Any], values: Sequence[Any]) -> tuple[list[Any], Any]:
    """Convert Σ d and Σ d² of `count` deviations from one number to deviations from another. Also returns the mean."""
    builder, (near, origin) = code.builder, map(code.widened, numbers)
    distance, (first, second) = builder.fsub(near, origin), values
    moved = builder.fadd(builder.fmul(count, distance), first)
    squares = builder.fmul(distance, builder.fadd(moved, first))  # n D² + 2 D Σ d
    mean = builder.fadd(near, builder.fdiv(first, count))
    return [moved, builder.fadd(squares, second)], builder.fptrunc(mean, code.vector(code.single))


def over(
    operands: int,
    parameters: Sequence[int],
    step: Step,
    *,
    sums: int = 0,
    moving: bool = False,
    past_cache: bool = False,
) -> Any:
    """The function (a, b, out, rows, width, height, parameters, wide, totals) that applies the step to a matrix, in
    blocks of rows and vectors of columns. Unused addresses are 0. Rows of parameters are `wide` bytes apart, sums 2 ·
    `wide` bytes. past_cache: results, at multiples of 64 bytes, are written directly to memory."""
    code = _block(operands, parameters, step, sums, moving, past_cache)

    def run(
        a: int, b: int, out: int, rows: int, width: int, height: int, parameters: int, wide: int, totals: int
    ) -> None:
        stride = 4 * width
        for first in range(0, rows, height):
            count, down, column = min(height, rows - first), first * stride, 0
            while column < width:
                at, known, sums_at = down + 4 * column, parameters + 4 * column, totals + 8 * column
                if column + VECTORS * LANES <= width:
                    code(VECTORS, LANES, a + at, b + at, out + at, count, stride, known, wide, sums_at)
                    column += VECTORS * LANES
                elif column + LANES <= width:
                    code(1, LANES, a + at, b + at, out + at, count, stride, known, wide, sums_at)
                    column += LANES
                else:
                    code(1, 1, a + at, b + at, out + at, count, stride, known, wide, sums_at)
                    column += 1

    return _inlined_as(f"over_{step.__name__}{'_past_cache' if past_cache else ''}", run)


def everywhere(run: Any) -> Any:
    """The function (grid, thread, threads, a, b, out, parameters, wide, totals) that applies `over`'s function to a
    thread's share of a tensor: of the outer axis if it is longer than 1, otherwise of the rows. The last thread also
    processes the partial row."""

    def walk(
        grid: Any, thread: int, threads: int, a: int, b: int, out: int, parameters: int, wide: int, totals: int
    ) -> None:
        width, rest = grid.width, grid.rest if grid.outer > 1 or thread == threads - 1 else 0
        outer, first, last = grid.outer > 1, 0, grid.rows
        begin, end = share(grid.outer, thread, threads), share(grid.outer, thread + 1, threads)
        if not outer:
            begin, end = 0, 1
            first, last = share(grid.rows, thread, threads), share(grid.rows, thread + 1, threads)
        for number in range(begin * grid.groups, end * grid.groups):
            start, column = number * grid.matrix, number % grid.groups * width
            known, sums = parameters + 4 * column, totals + 8 * column
            # One call for both parts: the compiler inlines each call, and is slower by a quarter to a third with two.
            for part in range(2 if rest > 0 else 1):
                whole = part == 0
                at = 4 * (start + (first if whole else grid.rows) * width)
                rows, columns, height = (last - first, width, grid.height) if whole else (1, rest, 1)
                run(a + at, b + at, out + at, rows, columns, height, known, wide, sums)

    return _inlined_as(f"everywhere_{run.py_func.__name__}", walk)


def _inlined_as(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled for calls from passes. It has a unique name, because code from the cache is linked by
    name."""
    function.__name__ = function.__qualname__ = name
    return inlined(function)


@inlined
def share(count: int, number: int, parts: int) -> int:
    """The start of part `number` of `parts` parts. The start of part `parts` is the end."""
    return count * number // parts


# Steps, functions of a number x (and dy), with the parameters in order


def _plain_sum(code: Emitter, values: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, ...]:
    return (values[0],)


def _deviations(code: Emitter, values: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, ...]:
    """x − k and its square."""
    deviation = code.builder.fsub(values[0], numbers[0])
    return deviation, code.builder.fmul(deviation, deviation)


column_sums = over(1, (), _plain_sum, sums=1)
"""Σ a."""
column_moments = over(1, (0, 1), _deviations, sums=2, moving=True)
"""Σ (a − parameter 1) and Σ (a − parameter 1)². Parameter 0 should be near the mean, and is updated."""


# Between columns and channels


@inlined
def clear(totals: int, count: int) -> None:
    """Set float64 sums to 0."""
    sums = float64_at(totals)
    for index in range(count):
        sums[index] = 0.0


@inlined
def fold(grid: Any, columns: int, totals: int) -> None:
    """Add the columns' float64 sums to the sums of their channels."""
    source, target = float64_at(columns), float64_at(totals)
    for group in range(grid.groups):
        for first in range(group * grid.width, (group + 1) * grid.width, grid.inner):
            for index in range(grid.inner):
                target[group + index] += source[first + index]


@inlined
def spread(grid: Any, channels: int, columns: int) -> None:
    """Copy a float32 number of each channel to all columns of the channel."""
    source, target = float32_at(channels), float32_at(columns)
    for group in range(grid.groups):
        for first in range(group * grid.width, (group + 1) * grid.width, grid.inner):
            for index in range(grid.inner):
                target[first + index] = source[group + index]
