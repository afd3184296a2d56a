"""Passes over rows of channels: the matrices of a tensor, sums down their columns, and shares of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.arguments import Address, Arguments
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import FLOAT32, Numbers, draw

from crossbow.kernels.compiled import native_pass  # isort: skip - after the module that skips without numba
from crossbow.kernels.cpu.passes.rows import (
    BLOCK,
    GRID,
    column_moments,
    column_sums,
    everywhere,
    fold,
    grid,
    share,
    spread,
)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((8, 3, 20, 20), Layout.CHANNELS_LAST),
        ((8, 64, 5, 5), Layout.CHANNELS_LAST),
        ((2, 1, 9, 9), Layout.CHANNELS_LAST),
        ((7, 1001), Layout.PLAIN),
        ((4, 3, 70), Layout.PLAIN),
        ((4, 3, 7), Layout.PLAIN),
        ((4, 1, 70), Layout.PLAIN),
    ],
)
def test_grids_cover_a_tensor(shape: Shape, layout: Layout) -> None:
    """Every number is in one place of the matrices, whose column tells its channel."""
    x = Tensor(shape, np.dtype(np.float32), layout)
    cut = grid(x)
    assert cut.outer * cut.groups * cut.matrix == x.elements
    channels = np.empty(x.elements, np.int64)
    for number in range(cut.outer * cut.groups):
        group, start = number % cut.groups, number * cut.matrix
        for index in range(cut.matrix):
            channels[start + index] = group + index % cut.width % cut.inner
    expected = np.broadcast_to(np.arange(shape[1]).reshape(-1, *[1] * (len(shape) - 2)), shape)
    in_memory = np.moveaxis(expected, 1, -1) if layout is Layout.CHANNELS_LAST else expected
    np.testing.assert_array_equal(channels, in_memory.reshape(-1))


def test_long_blocks_of_wide_rows_stay_in_the_cache() -> None:
    assert grid(Tensor((1000, 64), FLOAT32)).height == BLOCK
    assert grid(Tensor((1000, 128), FLOAT32)).height == BLOCK // 2
    assert grid(Tensor((1000, 5000), FLOAT32)).height == 16


def test_short_channels_of_plain_tensors_are_rows_of_one_vector() -> None:
    assert [grid(Tensor((3, 5, places), FLOAT32)).width for places in (16, 63, 64, 500)] == [16, 16, 64, 64]


WIDE = Arguments(x=Address, rows=int, width=int, height=int, parameters=Address, totals=Address)


@native_pass(WIDE)
def sum_columns(block: Any) -> int:
    column_sums(block.x, 0, 0, block.rows, block.width, block.height, 0, 4 * block.width, block.totals)
    return 0


@native_pass(WIDE)
def sum_moments(block: Any) -> int:
    width = 4 * block.width
    column_moments(block.x, 0, 0, block.rows, block.width, block.height, block.parameters, width, block.totals)
    return 0


WIDTHS = [1, 15, 16, 17, 64, 100]
"""Single columns, one vector, several vectors, and remainders."""


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("rows", "height"), [(1, 64), (7, 64), (64, 64), (65, 64), (200, 16), (3, 1)])
def test_sums_down_the_columns_are_added_to_what_is_there(width: int, rows: int, height: int) -> None:
    x = draw((rows, width)) + np.float32(100)
    totals = np.arange(width + 1.0)
    sum_columns.call("sums", x=x, rows=rows, width=width, height=height, parameters=None, totals=totals)()
    np.testing.assert_allclose(totals[:-1] - np.arange(width), x.sum(0, dtype=np.float64), rtol=2e-7)
    assert totals[-1] == width


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("rows", "height"), [(1, 64), (65, 64), (200, 16)])
def test_moments_are_of_deviations_from_the_second_parameter(width: int, rows: int, height: int) -> None:
    """However far the first one, from which they are added up, is away; afterwards it is near the mean."""
    x = draw((rows, width)) + np.float32(100)
    near, origin = np.full(width, 98, np.float32), draw((width,), 1) + np.float32(99)
    parameters, totals = np.stack([near, origin]), np.zeros((2, width))
    sum_moments.call("moments", x=x, rows=rows, width=width, height=height, parameters=parameters, totals=totals)()
    deviations = x.astype(np.float64) - origin
    np.testing.assert_allclose(totals[0], deviations.sum(0), rtol=0, atol=2e-4)
    np.testing.assert_allclose(totals[1], np.square(deviations).sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(parameters[1], origin)
    last = x[(rows - 1) // height * height :].mean(0, dtype=np.float64)
    np.testing.assert_allclose(parameters[0], last, rtol=1e-6)


EVERYWHERE = Arguments(
    x=Address, grid=GRID, thread=int, threads=int, columns=Address, channels=Address, numbers=Address, copies=Address
)
_sums_everywhere = everywhere(column_sums)


@native_pass(EVERYWHERE)
def sum_share(block: Any) -> int:
    """A thread's share of the sums; the last one folds them to channels, and spreads `numbers`."""
    g = block.grid
    _sums_everywhere(g, block.thread, block.threads, block.x, 0, 0, 0, 4 * g.width, block.columns)
    if block.thread == block.threads - 1:
        fold(g, block.columns, block.channels)
        spread(g, block.numbers, block.copies)
    return 0


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((70, 3), Layout.PLAIN),
        ((9, 20, 3, 5), Layout.CHANNELS_LAST),
        ((1, 40), Layout.PLAIN),
        ((30, 2000), Layout.PLAIN),
        ((3, 5, 70), Layout.PLAIN),
    ],
)
def test_the_threads_shares_are_the_whole(shape: Shape, layout: Layout, threads: int) -> None:
    x, values = Tensor(shape, FLOAT32, layout), draw(shape)
    cut, in_memory = grid(x), np.moveaxis(values, 1, -1).copy() if layout is Layout.CHANNELS_LAST else values
    columns, channels = np.zeros(cut.columns), np.zeros(cut.channels)
    numbers, copies = draw((cut.channels,), 1), np.zeros(cut.columns, np.float32)
    for thread in range(threads):
        sum_share.call(
            "share", x=in_memory, grid=cut.arguments, thread=thread, threads=threads, columns=columns,
            channels=channels, numbers=numbers, copies=copies,
        )()  # fmt: skip
    exact: Numbers = values.sum(axis=tuple(axis for axis in range(len(shape)) if axis != 1), dtype=np.float64)
    np.testing.assert_allclose(channels, exact, rtol=0, atol=1e-5)
    columns_channels = [group + column % cut.inner for group in range(cut.groups) for column in range(cut.width)]
    np.testing.assert_array_equal(copies, numbers[columns_channels])


def test_shares_have_no_gaps() -> None:
    for count, parts in ((10, 3), (2, 5), (0, 2), (64, 8)):
        bounds = [share.py_func(count, number, parts) for number in range(parts + 1)]
        assert bounds[0] == 0
        assert bounds[-1] == count
        assert max(np.diff(bounds)) - min(np.diff(bounds)) <= 1
