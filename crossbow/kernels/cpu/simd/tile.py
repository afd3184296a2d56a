"""A register tile of a matrix product, compiled for its size, and products of tiles, which our own convolutions use.

C[r, :] ← bias + Σ_k A[r, k] · B[k, :], or C[r, :] ← C[r, :] + …, for as many rows and columns as fit in the registers
(8 and 48 with AVX-512). k runs over two nested loops, each with its strides, so that A and B may be windows that
overlap in memory. The columns of a row are contiguous in B and bias, and those of a vector in C; the elements of A need
not be. NaN passes through the ReLU, as in the reference (oneDNN's returns 0).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils

from crossbow.kernels.arguments import Address, Arguments, Value
from crossbow.kernels.compiled import (
    NativeFunction,
    address_of,
    call_address,
    inlined,
    instruction,
    int64_at,
    native_pass,
)
from crossbow.kernels.cpu.emitter import Emitter
from crossbow.kernels.cpu.simd import processor

LANES = processor.VECTORS.lanes
"""Number of columns of a vector."""
ROWS, VECTORS = processor.VECTORS.rows, processor.VECTORS.columns
"""Maximum number of rows, and of vectors in a row, of a tile. With AVX-512 its 24 sums and their operands fill the 32
registers."""

TILE = Arguments(
    a=Address,
    b=Address,
    c=Address,
    bias=Address,
    outer=int,
    inner=int,
    a_row=int,
    a_outer=int,
    a_inner=int,
    b_outer=int,
    b_inner=int,
    c_row=int,
    c_vector=int,
    add=int,
    relu=int,
    rest=int,
)
"""outer, inner: lengths of k's two loops. a_row, …: strides in elements. c_vector: the distance between two vectors of
a row of C. add: whether the products are added to C. relu: whether C becomes max(C, 0). rest: number of columns of the
last, partial vector."""

PACKED = {"outer": 1, "a_row": 1, "a_outer": 0, "a_inner": ROWS, "b_outer": 0, "b_inner": VECTORS * LANES}
"""Loops and strides of a tile whose factors were copied to contiguous memory, k by k, as wide as the largest tile."""

_register: Callable[[Any, Any], Any] = cgutils.alloca_once


class _Tile:
    """Emits the instructions of a tile of `rows` rows, `vectors` whole vectors and, if tail > 0, a partial one. If
    `packed` is not 0, the values of `PACKED` are constants: the compiler needs fewer instructions for addresses."""

    word, single = Emitter.word, Emitter.single

    def __init__(self, builder: Any, block: Any, rows: int, vectors: int, tail: int, packed: int) -> None:
        self.builder, self.rows = builder, rows
        pointer = builder.inttoptr(block, self.word.as_pointer())
        self.arguments = {
            name: builder.load(builder.gep(pointer, [self.word(slot)])) for slot, name in enumerate(TILE.names)
        }
        if packed:
            self.arguments |= {name: self.word(value) for name, value in PACKED.items()}
        self.columns = [Emitter(builder, LANES) for _ in range(vectors)]
        if tail:
            self.columns.append(Emitter(builder, tail, self.arguments["rest"]))

    def write(self) -> None:
        builder, arguments = self.builder, self.arguments
        sums = [[_register(builder, code.vector(code.single)) for code in self.columns] for _ in range(self.rows)]
        zeros = [code.constant(0.0) for code in self.columns]
        for row in sums:
            for place, zero in zip(row, zeros, strict=True):
                builder.store(zero, place)
        with builder.if_then(builder.icmp_signed("!=", arguments["bias"], self.word(0))):
            for column in range(len(self.columns)):
                value = self._load(arguments["bias"], self.word(0), column)
                for row in sums:
                    builder.store(value, row[column])
        with cgutils.for_range(builder, arguments["outer"]) as outer:
            a_outer, b_outer = (builder.mul(outer.index, arguments[stride]) for stride in ("a_outer", "b_outer"))
            with cgutils.for_range(builder, arguments["inner"]) as inner:
                a = builder.add(a_outer, builder.mul(inner.index, arguments["a_inner"]))
                b = builder.add(b_outer, builder.mul(inner.index, arguments["b_inner"]))
                self._multiply(sums, a, b)
        self._finish(sums, zeros)

    def _multiply(self, sums: list[list[Any]], a: Any, b: Any) -> None:
        builder, arguments = self.builder, self.arguments
        columns = [self._load(arguments["b"], b, column) for column in range(len(self.columns))]
        base = builder.inttoptr(arguments["a"], self.single.as_pointer())
        for number, row in enumerate(sums):
            place = builder.add(a, builder.mul(arguments["a_row"], self.word(number)))
            value = builder.load(builder.gep(base, [place]))
            for code, column, total in zip(self.columns, columns, row, strict=True):
                builder.store(code.fused(code.splat(value), column, builder.load(total)), total)

    def _finish(self, sums: list[list[Any]], zeros: list[Any]) -> None:
        builder, arguments = self.builder, self.arguments
        relu = builder.icmp_signed("!=", arguments["relu"], self.word(0))
        with builder.if_else(builder.icmp_signed("!=", arguments["add"], self.word(0))) as (adding, replacing):
            with adding:
                for place, code, total, _ in self._sums(sums, zeros):
                    # One row after the other, because rows of C may overlap.
                    code.store(builder.fadd(total, code.load(place)), place)
            with replacing:
                for place, code, total, zero in self._sums(sums, zeros):
                    flat = builder.and_(builder.fcmp_ordered("<", total, zero), code.splat(relu))
                    code.store(builder.select(flat, zero, total), place)

    def _sums(self, sums: list[list[Any]], zeros: list[Any]) -> Iterator[tuple[Any, Emitter, Any, Any]]:
        """Address in C, emitter, sum and zero of every vector."""
        builder, arguments = self.builder, self.arguments
        for number, row in enumerate(sums):
            offset = builder.mul(arguments["c_row"], self.word(number))
            for column, (code, total, zero) in enumerate(zip(self.columns, row, zeros, strict=True)):
                index = builder.add(offset, builder.mul(arguments["c_vector"], self.word(column)))
                yield self._place(arguments["c"], index), code, builder.load(total), zero

    def _place(self, base: Any, index: Any) -> Any:
        return self.builder.add(base, self.builder.shl(index, self.word(2)))

    def _load(self, base: Any, index: Any, column: int) -> Any:
        return self.columns[column].load(self._place(base, self.builder.add(index, self.word(LANES * column))))


@instruction
def _tile(typing_context: Any, block: Any, rows: Any, vectors: Any, tail: Any, packed: Any) -> Any:
    """Compute a tile of the literal sizes, with the arguments in the block at an address."""
    literals = rows, vectors, tail, packed

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _Tile(builder, arguments[0], *(literal.literal_value for literal in literals)).write()
        return context.get_dummy_value()

    if not all(isinstance(literal, types.IntegerLiteral) for literal in literals):
        return None
    return types.void(types.int64, *literals), generate


def tile(rows: int, columns: int, *, packed: bool = False) -> NativeFunction:
    """The compiled tile of a number of rows (at most ROWS) and columns (at most VECTORS vectors). packed: whether the
    arguments have the values of `PACKED`."""
    vectors, rest = divmod(columns, LANES)
    tail = 0 if rest == 0 else next(width for width in (4, 8, LANES) if rest <= width)
    return _compiled(rows, vectors, tail, int(packed))


@functools.cache
def _compiled(rows: int, vectors: int, tail: int, packed: int) -> NativeFunction:
    def tile_pass(block: Any) -> int:
        _tile(address_of(block), rows, vectors, tail, packed)
        return 0

    tile_pass.__name__ = f"{'packed_' if packed else ''}tile_{rows}_{vectors}_{tail}"
    return native_pass(TILE)(tile_pass)


PRODUCT = Arguments(tile=TILE, chunks=int, table=Address)
"""A `Product` in an argument block."""
CHUNK = 8
"""Number of integers of a chunk of columns in the table: its first column, the number of columns of its partial vector,
and, for two kinds of tiles, the number of tiles, their rows, and the address of the compiled tile."""


class Product:
    """A product, divided into tiles of nearly equal sizes, because a tile with few sums waits for its additions."""

    def __init__(self, rows: int, columns: int, **arguments: int) -> None:
        """rows, columns: sizes of C. arguments: fields of `TILE`, such as lengths and strides; the others are 0."""
        vectors = -(-columns // LANES)
        chunks = -(-vectors // VECTORS)
        bounds = [-(-vectors * part // chunks) * LANES for part in range(chunks)] + [columns]
        table: list[int] = []
        for first, last in itertools.pairwise(bounds):
            table += [first, (last - first) % LANES]
            parts = -(-rows // ROWS)
            for size, count in ((-(-rows // parts), rows % parts or parts), (rows // parts, -rows % parts)):
                table += [count, size, tile(size, last - first).address if count else 0]
        self.arguments: Mapping[str, Value] = {
            "tile": {**dict.fromkeys(TILE.names, 0), "c_vector": LANES, **arguments},
            "chunks": chunks,
            "table": np.array(table, np.int64),
        }


@inlined
def multiply_chunk(product: Any, chunk: int, a: int, b: int, c: int, bias: int) -> None:
    """Compute a chunk of the columns of C. a, b, c: addresses of the first rows of the matrices; bias may be 0."""
    tile, table = product.tile, int64_at(product.table + 8 * chunk * CHUNK)
    first = 4 * table[0]
    tile.a, tile.b, tile.c, tile.bias = a, b + first, c + first, 0 if bias == 0 else bias + first
    tile.rest = table[1]
    for part in range(2, CHUNK, 3):
        for _ in range(table[part]):
            call_address(table[part + 2], address_of(tile), 0, 0, 0)
            tile.a += 4 * table[part + 1] * tile.a_row
            tile.c += 4 * table[part + 1] * tile.c_row
