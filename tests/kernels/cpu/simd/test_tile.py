"""The register tiles, in every size, against NumPy."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cpu.simd import processor, tile
from tests.kernels.cpu.buffers import Numbers, draw

ROOT = Path(__file__).parents[4]
GUARD = np.float32(-12345.0)
COLUMNS = tile.VECTORS * tile.LANES


def run(rows: int, columns: int, **arguments: Numbers | int) -> None:
    given = {**dict.fromkeys(tile.TILE.names, 0), "rest": columns % tile.LANES, "outer": 1, "c_vector": tile.LANES}
    given |= arguments
    tile.tile(rows, columns).call("tile", **given)()


class Product:
    """A product with loops of k, in memory with more between the rows than they need."""

    def __init__(self, rows: int, columns: int, outer: int = 3, inner: int = 5, gap: int = 3) -> None:
        self.rows, self.columns, self.outer, self.inner = rows, columns, outer, inner
        self.a, self.b = draw((rows, outer, inner)), draw((outer, inner, columns + gap))
        self.bias, self.before = draw((columns,), 3), draw((rows, columns), 4)
        self.c = np.full((rows + 2, columns + gap), GUARD)
        self.c[1:-1, :columns] = self.before
        self.arguments: dict[str, Numbers | int] = {
            "a": self.a,
            "b": self.b,
            "c": self.c[1],
            "outer": outer,
            "inner": inner,
            "a_row": outer * inner,
            "a_outer": inner,
            "a_inner": 1,
            "b_outer": inner * (columns + gap),
            "b_inner": columns + gap,
            "c_row": columns + gap,
        }

    @property
    def expected(self) -> Numbers:
        return np.einsum("roi,oic->rc", self.a.astype(np.float64), self.b[..., : self.columns].astype(np.float64))

    def run(self, **options: Numbers | int) -> Numbers:
        """The result; nothing beside it may have been written."""
        self.c[1:-1, : self.columns] = self.before
        run(self.rows, self.columns, **{**self.arguments, **options})
        assert (self.c[0] == GUARD).all()
        assert (self.c[-1] == GUARD).all()
        assert (self.c[:, self.columns :] == GUARD).all()
        return self.c[1:-1, : self.columns].copy()


def close(actual: Numbers, expected: Numbers) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("rows", range(1, tile.ROWS + 1))
def test_every_size(rows: int) -> None:
    for columns in range(1, COLUMNS + 1):
        product = Product(rows, columns)
        expected, bias = product.expected, product.bias
        close(product.run(), expected)
        close(product.run(add=1), product.before + expected)
        close(product.run(bias=bias), expected + product.bias)
        close(product.run(relu=1), np.maximum(expected, 0))
        close(product.run(bias=bias, relu=1), np.maximum(expected + product.bias, 0))
        assert columns < 3 or 0 < (product.run(relu=1) == 0).sum() < rows * columns


@pytest.mark.parametrize("columns", [1, 4, 7, 16, 21, 25, 32, 45, 48])
def test_the_columns_in_the_guard_are_not_read(columns: int) -> None:
    product = Product(5, columns)
    product.b[..., columns:] = np.nan
    bias = np.full(columns + 3, np.nan, np.float32)
    bias[:columns] = product.bias
    close(product.run(bias=bias), product.expected + product.bias)


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (1, 40), (7, 1), (0, 5), (5, 0)])
def test_other_loops(outer: int, inner: int) -> None:
    """Without a single term the result is the bias, or 0."""
    product = Product(8, 21, outer, inner)
    close(product.run(), product.expected)
    close(product.run(bias=product.bias), product.expected + product.bias)
    close(product.run(add=1), product.before + product.expected)


@pytest.mark.parametrize(("rows", "columns"), [(8, 48), (3, 13), (8, 20)])
def test_windows_that_overlap(rows: int, columns: int) -> None:
    """Rows of A a little further on in memory, as in a convolution: a[r, u, i] = x[2 r + 7 u + i]."""
    x, b = draw((200,)), draw((3, 9, columns))
    c = np.full((rows, columns), np.nan, np.float32)
    a_strides = {"a_row": 2, "a_outer": 7, "a_inner": 1}
    b_strides = {"b_outer": 9 * columns, "b_inner": columns}
    run(rows, columns, a=x, b=b, c=c, outer=3, inner=9, c_row=columns, **a_strides, **b_strides)
    r, u, i = np.ogrid[:rows, :3, :9]
    close(c, np.einsum("rui,uic->rc", x[2 * r + 7 * u + i].astype(np.float64), b.astype(np.float64)))


@pytest.mark.parametrize("step", [1, 3, 16, 21])
@pytest.mark.parametrize("columns", [5, 16, 21, 48])
def test_rows_of_the_result_that_overlap(columns: int, step: int) -> None:
    """Each adds to what the one before has left, as where windows give their gradients back."""
    rows, inner = 8, 6
    a, b, start = draw((rows, inner)), draw((inner, columns)), draw((8 * 21 + 60,), 2)
    c = start.copy()
    run(rows, columns, a=a, b=b, c=c, inner=inner, add=1, a_row=inner, a_inner=1, b_inner=columns, c_row=step)
    expected = start.astype(np.float64)
    for row, values in enumerate(a.astype(np.float64) @ b.astype(np.float64)):
        expected[row * step : row * step + columns] += values
    close(c, expected)
    assert (c[(rows - 1) * step + columns :] == start[(rows - 1) * step + columns :]).all()


def test_sums_are_in_order_and_rounded_once_for_each_term_if_the_processor_can() -> None:
    """Fused products: 1 + 2⁻¹² squared, less its rounded value, is what a rounded product would have lost."""
    value = np.float32(1 + 2**-12)
    a, b = np.array([[1, value]], np.float32), np.array([[-value * value], [value]], np.float32)
    c = np.zeros((1, 1), np.float32)
    run(1, 1, a=a, b=b, c=c, inner=2, a_row=2, a_inner=1, b_inner=1, c_row=1)
    lost = np.float64(value) * np.float64(value) - np.float64(np.float32(value * value))
    assert c[0, 0] == (lost if processor.VECTORS.fused else 0)
    assert lost != 0


@pytest.mark.parametrize("columns", [3, 16, 29])
def test_what_is_not_a_number_stays_that(columns: int) -> None:
    """As in the reference, whose max(NaN, 0) is NaN. The library's ReLU, and its primitives with one, make 0 of it."""
    product = Product(4, columns)
    product.b[1, 2, 1] = np.nan
    for relu in (0, 1):
        result = product.run(relu=relu)
        assert np.isnan(result[:, 1]).all()
        assert not np.isnan(np.delete(result, 1, axis=1)).any()
    product.b[1, 2, 1] = np.inf
    result, sign = product.run(relu=1), product.a[:, 1, 2] > 0
    assert np.array_equal(result[:, 1], np.where(sign, np.inf, 0))
    assert sign.any()
    assert not sign.all()


@pytest.mark.slow
def test_it_reads_and_writes_nothing_behind_the_last_column() -> None:
    """B, C and bias end where a page ends; the next one belongs to nobody, and touching it would end the process."""
    script = """
        import ctypes, mmap
        import numpy as np
        from crossbow.types import address
        from tests.kernels.cpu.simd.test_tile import run

        pages = 3 * mmap.PAGESIZE
        libc = ctypes.CDLL(None, use_errno=True)

        def at_the_end(elements):
            room = mmap.mmap(-1, pages)
            values = np.frombuffer(room, np.float32)
            last = address(values) + 2 * mmap.PAGESIZE
            assert libc.mprotect(ctypes.c_void_p(last), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
            kept.append((room, values))
            return values[2 * mmap.PAGESIZE // 4 - elements : 2 * mmap.PAGESIZE // 4]

        kept = []
        for columns in (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 25, 33, 47, 48):
            a = np.ones((2, 3), np.float32)
            b, c, bias = at_the_end(3 * columns), at_the_end(2 * columns), at_the_end(columns)
            b[:], c[:], bias[:] = 1, 0, 5
            arguments = dict(a=a, b=b, c=c, inner=3, a_row=3, a_inner=1, b_inner=columns, c_row=columns)
            run(2, columns, bias=bias, **arguments)
            assert (c == 8).all()
            run(2, columns, add=1, **arguments)
            assert (c == 11).all()
        print("nothing", flush=True)
        import os
        os._exit(0)  # and nobody frees that memory
    """
    arguments: list[Any] = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "nothing\n"), done.stderr
