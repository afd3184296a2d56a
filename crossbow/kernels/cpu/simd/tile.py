"""One register tile of a matrix product, compiled for its size, and products made of tiles: the inside of our own
convolutions.

C[r, :] ← bias + Σ_k A[r, k] · B[k, :], or C[r, :] ← C[r, :] + …, for as many rows and columns as the registers hold
(with AVX-512 8 and 48). k runs over two nested loops with strides of their own, so that A and B may be windows that
overlap in memory. The columns of a row are contiguous in B, C and bias; the elements of A lie anywhere. NaN passes
through the ReLU, as in the reference (oneDNN's makes 0 of it).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from crossbow.kernels.compiled import NativeFunction, call_address, inlined, instruction, int64_at, native
from crossbow.kernels.cpu.simd import processor

LANES = processor.VECTORS.lanes
"""Columns of a vector."""
ROWS, VECTORS = processor.VECTORS.rows, processor.VECTORS.columns
"""Of a tile at the most: with AVX-512 these are 24 sums, which with their operands fill the 32 registers."""

# The slots of a tile's argument block.
A, B, C, BIAS = 0, 1, 2, 3
OUTER, INNER = 4, 5
"""How often k's two loops run."""
A_ROW, A_OUTER, A_INNER = 6, 7, 8
B_OUTER, B_INNER = 9, 10
C_ROW = 11
"""Strides, in elements."""
ADD, RELU, REST = 12, 13, 14
"""Whether C is added to; whether C becomes max(C, 0); the columns of the last, partial vector."""
SLOTS = 15


_get_function: Callable[[Any, Any, str], Any] = cgutils.get_or_insert_function
_register: Callable[[Any, Any], Any] = cgutils.alloca_once


class _Tile:
    """Writes the instructions of a tile of `rows` rows, `vectors` whole vectors and perhaps a partial one."""

    word, bit, single = ir.IntType(64), ir.IntType(1), ir.FloatType()

    def __init__(self, context: Any, builder: Any, block: Any, rows: int, vectors: int, tail: int) -> None:
        self.builder, self.rows = builder, rows
        pointer = builder.inttoptr(block, self.word.as_pointer())
        self.slots = [builder.load(builder.gep(pointer, [self.word(slot)])) for slot in range(SLOTS)]
        self.widths = [LANES] * vectors + ([tail] if tail else [])
        self.mask: Any = None
        if tail:
            lanes = ir.Constant(ir.VectorType(self.word, tail), list(range(tail)))
            self.mask = builder.icmp_signed("<", lanes, self._splat(self.slots[REST], tail, self.word))

    def write(self) -> None:
        builder, slots = self.builder, self.slots
        sums = [
            [_register(builder, ir.VectorType(self.single, width)) for width in self.widths] for _ in range(self.rows)
        ]
        zeros = [ir.Constant(ir.VectorType(self.single, width), None) for width in self.widths]
        for row in sums:
            for place, zero in zip(row, zeros, strict=True):
                builder.store(zero, place)
        with builder.if_then(builder.icmp_signed("!=", slots[BIAS], self.word(0))):
            for column in range(len(self.widths)):
                value = self._load(slots[BIAS], self.word(0), column)
                for row in sums:
                    builder.store(value, row[column])
        with cgutils.for_range(builder, slots[OUTER]) as outer:
            a_outer, b_outer = (builder.mul(outer.index, slots[stride]) for stride in (A_OUTER, B_OUTER))
            with cgutils.for_range(builder, slots[INNER]) as inner:
                a = builder.add(a_outer, builder.mul(inner.index, slots[A_INNER]))
                b = builder.add(b_outer, builder.mul(inner.index, slots[B_INNER]))
                self._multiply(sums, a, b)
        self._finish(sums, zeros)

    def _multiply(self, sums: list[list[Any]], a: Any, b: Any) -> None:
        builder, slots = self.builder, self.slots
        columns = [self._load(slots[B], b, column) for column in range(len(self.widths))]
        base = builder.inttoptr(slots[A], self.single.as_pointer())
        for number, row in enumerate(sums):
            place = builder.add(a, builder.mul(slots[A_ROW], self.word(number)))
            value = builder.load(builder.gep(base, [place]))
            for column, (total, width) in enumerate(zip(row, self.widths, strict=True)):
                factor = self._splat(value, width, self.single)
                builder.store(self._fma(factor, columns[column], builder.load(total)), total)

    def _finish(self, sums: list[list[Any]], zeros: list[Any]) -> None:
        builder, slots = self.builder, self.slots
        relu = builder.icmp_signed("!=", slots[RELU], self.word(0))
        with builder.if_else(builder.icmp_signed("!=", slots[ADD], self.word(0))) as (adding, replacing):
            with adding:
                for offset, column, total, _ in self._sums(sums, zeros):
                    # One row after the other: rows of C may overlap.
                    self._store(builder.fadd(total, self._load(slots[C], offset, column)), slots[C], offset, column)
            with replacing:
                for offset, column, total, zero in self._sums(sums, zeros):
                    flat = builder.and_(
                        builder.fcmp_ordered("<", total, zero), self._splat(relu, self.widths[column], self.bit)
                    )
                    self._store(builder.select(flat, zero, total), slots[C], offset, column)

    def _sums(self, sums: list[list[Any]], zeros: list[Any]) -> Iterator[tuple[Any, int, Any, Any]]:
        """Row offset in C, column, sum and zero of every vector."""
        for number, row in enumerate(sums):
            offset = self.builder.mul(self.slots[C_ROW], self.word(number))
            for column, (place, zero) in enumerate(zip(row, zeros, strict=True)):
                yield offset, column, self.builder.load(place), zero

    def _place(self, base: Any, index: Any, column: int) -> Any:
        place = self.builder.add(index, self.word(LANES * column))
        address = self.builder.add(base, self.builder.shl(place, self.word(2)))
        return self.builder.inttoptr(address, ir.VectorType(self.single, self.widths[column]).as_pointer())

    def _partial(self, column: int) -> bool:
        return self.mask is not None and column == len(self.widths) - 1

    def _load(self, base: Any, index: Any, column: int) -> Any:
        place = self._place(base, index, column)
        if not self._partial(column):
            return self.builder.load(place, align=4)
        width = self.widths[column]
        kind = ir.VectorType(self.single, width)
        name = f"llvm.masked.load.v{width}f32.p0v{width}f32"
        signature = ir.FunctionType(kind, [kind.as_pointer(), ir.IntType(32), ir.VectorType(self.bit, width), kind])
        function = _get_function(self.builder.module, signature, name)
        return self.builder.call(function, [place, ir.IntType(32)(4), self.mask, ir.Constant(kind, None)])

    def _store(self, value: Any, base: Any, index: Any, column: int) -> None:
        place = self._place(base, index, column)
        if not self._partial(column):
            self.builder.store(value, place, align=4)
            return
        width = self.widths[column]
        kind = ir.VectorType(self.single, width)
        name = f"llvm.masked.store.v{width}f32.p0v{width}f32"
        arguments = [kind, kind.as_pointer(), ir.IntType(32), ir.VectorType(self.bit, width)]
        function = _get_function(self.builder.module, ir.FunctionType(ir.VoidType(), arguments), name)
        self.builder.call(function, [value, place, ir.IntType(32)(4), self.mask])

    def _fma(self, left: Any, right: Any, total: Any) -> Any:
        if not processor.VECTORS.fused:  # or LLVM would call a function for every number
            return self.builder.fadd(self.builder.fmul(left, right), total)
        kind = total.type
        signature = ir.FunctionType(kind, [kind] * 3)
        function = _get_function(self.builder.module, signature, f"llvm.fma.v{kind.count}f32")
        return self.builder.call(function, [left, right, total])

    def _splat(self, value: Any, width: int, kind: Any) -> Any:
        undefined = ir.Constant(ir.VectorType(kind, width), ir.Undefined)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), width), None)
        first = self.builder.insert_element(undefined, value, ir.IntType(32)(0))
        return self.builder.shuffle_vector(first, undefined, lanes)


@instruction
def _tile(typing_context: Any, block: Any, rows: Any, vectors: Any, tail: Any) -> Any:
    """The tile of the literal sizes, with the arguments in the block at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _Tile(context, builder, arguments[0], rows.literal_value, vectors.literal_value, tail.literal_value).write()
        return context.get_dummy_value()

    if not all(isinstance(size, types.IntegerLiteral) for size in (rows, vectors, tail)):
        return None
    return types.void(types.int64, rows, vectors, tail), generate


def tile(rows: int, columns: int) -> NativeFunction:
    """The compiled tile for so many rows (at most ROWS) and columns (at most VECTORS vectors)."""
    vectors, rest = divmod(columns, LANES)
    return _compiled(rows, vectors, 0 if rest == 0 else next(width for width in (4, 8, LANES) if rest <= width))


@functools.cache
def _compiled(rows: int, vectors: int, tail: int) -> NativeFunction:
    def tile_pass(block: int, _1: int, _2: int, _3: int) -> int:
        _tile(block, rows, vectors, tail)
        return 0

    tile_pass.__name__ = f"tile_{rows}_{vectors}_{tail}"
    return native(tile_pass)


class Product:
    """A product of so many rows and columns, cut evenly into tiles: one with few sums waits for them.

    Its slots in an argument block: those of a tile, the number of chunks of columns, and for each its first column, the
    columns of its partial vector, and twice a number of tiles, their rows, and the tile.
    """

    def __init__(self, rows: int, columns: int, strides: Mapping[int, int]) -> None:
        self.slots = [0] * SLOTS
        for slot, value in strides.items():
            self.slots[slot] = value
        vectors = -(-columns // LANES)
        chunks = -(-vectors // VECTORS)
        self.slots.append(chunks)
        bounds = [-(-vectors * part // chunks) * LANES for part in range(chunks)] + [columns]
        for first, last in itertools.pairwise(bounds):
            self.slots += [first, (last - first) % LANES]
            parts = -(-rows // ROWS)
            for size, count in ((-(-rows // parts), rows % parts or parts), (rows // parts, -rows % parts)):
                self.slots += [count, size, tile(size, last - first).address if count else 0]


CHUNKS, TABLE, CHUNK = SLOTS, SLOTS + 1, 8
"""Where a product's slots hold the number of chunks, and the chunks; the slots of one."""


@inlined
def multiply_chunk(product: int, chunk: int, a: int, b: int, c: int, bias: int) -> None:
    """A chunk of the columns of C, whose first row begins at c, as B's at b and A's at a; bias may be 0."""
    slots, table = int64_at(product), int64_at(product + 8 * (TABLE + chunk * CHUNK))
    first = 4 * table[0]
    slots[A], slots[B], slots[C], slots[BIAS] = a, b + first, c + first, 0 if bias == 0 else bias + first
    slots[REST] = table[1]
    for part in range(2, CHUNK, 3):
        for _ in range(table[part]):
            call_address(table[part + 2], product, 0, 0, 0)
            slots[A] += 4 * table[part + 1] * slots[A_ROW]
            slots[C] += 4 * table[part + 1] * slots[C_ROW]
