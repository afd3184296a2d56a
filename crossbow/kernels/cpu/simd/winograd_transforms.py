"""Winograd's transforms F(m×m, r×r), compiled: from r×r weights or (m + r − 1)² pixels to points and back.

A polynomial of degree m + r − 2 is known from its values at m + r − 1 points, and a convolution is a product of
polynomials. With the points 0, ±1, ±2 and ∞ (the leading coefficient), as in the algorithm of Toom and Cook, transposed
by Winograd:

    y = Aᵀ [(G w Gᵀ) ⊙ (Bᵀ x B)] A

With N_j = Π_{l≠j} (a_j − a_l), for the finite points a_j: A[j, i] = a_j^i, G[j, k] = a_j^k / N_j, and row j of Bᵀ holds
the coefficients of Π_{l≠j} (x − a_l). The rows for ∞ are the unit vectors of the highest powers, and the coefficients
of Π_l (x − a_l).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from crossbow.kernels.arguments import Address, Arguments, Value
from crossbow.kernels.compiled import NativeFunction, address_of, call_address, inlined, instruction, native_pass
from crossbow.kernels.cpu.emitter import Emitter
from crossbow.kernels.cpu.simd.tile import LANES

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS = (0, 1, -1, 2, -2)
"""The finite points, in the order in which they are used. Pairs of opposite sign share half of their arithmetic."""


def matrices(outputs: int, kernel: int) -> Mapping[str, Matrix]:
    """A (points × outputs), G (points × kernel) and B (points × points) of a tile with this many outputs in a row."""
    finite, size = POINTS[: outputs + kernel - 2], outputs + kernel - 1
    a, g, b = [], [], []
    for point in finite:
        others = [other for other in finite if other != point]
        scale = Fraction(1, int(np.prod([point - other for other in others])))
        a.append([Fraction(point) ** power for power in range(outputs)])
        g.append([scale * point**power for power in range(kernel)])
        b.append([*_polynomial(others), Fraction(0)])
    for rows, length in ((a, outputs), (g, kernel)):
        rows.append([Fraction(int(power == length - 1)) for power in range(length)])
    b.append(_polynomial(finite))
    assert len(b) == size
    columns = zip(*b, strict=True)
    return {"A": _frozen(a), "G": _frozen(g), "B": _frozen(columns)}


def _polynomial(roots: Sequence[int]) -> list[Fraction]:
    """The coefficients of Π (x − root), the constant first."""
    made = [Fraction(1)]
    for root in roots:
        made = [below - root * at for below, at in zip([Fraction(0), *made], [*made, Fraction(0)], strict=True)]
    return made


def _frozen(rows: Any) -> Matrix:
    return tuple(tuple(row) for row in rows)


def _transposed(matrix: Matrix) -> Matrix:
    return _frozen(zip(*matrix, strict=True))


INPUT, WEIGHTS, OUTPUT, INPUT_GRADIENT, WEIGHTS_GRADIENT, OUTPUT_GRADIENT = range(6)
"""Bᵀ x B, G w Gᵀ and Aᵀ M A, and their transposes: B Q Bᵀ, which is added to the target, because tiles of the input
overlap; Gᵀ P G; and A dy Aᵀ."""


def _matrix(which: int, outputs: int, kernel: int) -> tuple[Matrix, bool]:
    """The left factor of a transform, and whether the transform is from points (then the factor's columns are
    points)."""
    found = matrices(outputs, kernel)
    a, g, b = found["A"], found["G"], found["B"]
    return {
        INPUT: (_transposed(b), False),
        WEIGHTS: (g, False),
        OUTPUT: (_transposed(a), True),
        INPUT_GRADIENT: (b, True),
        WEIGHTS_GRADIENT: (_transposed(g), True),
        OUTPUT_GRADIENT: (a, False),
    }[which]


TRANSFORM = Arguments(
    source=Address,
    source_tile=int,
    source_row=int,
    source_column=int,
    target=Address,
    target_tile=int,
    target_row=int,
    target_column=int,
    tiles=int,
    elements=int,
    shift=Address,
    floor=float,
)
"""source, target: the first tile, and distances in bytes between tiles, and between rows and columns of a tile.
elements: numbers at each place of a tile, at least LANES. Only OUTPUT uses `shift`, an array of `elements` numbers that
are added, and `floor`, a lower bound (NaN stays NaN)."""
BOUND_TRANSFORM = Arguments(function=Address, block=TRANSFORM)
"""A transform in a pass's argument block."""


class _Sandwich:
    """Emits `target ← matrix · source · matrixᵀ` for grids of vectors of LANES numbers."""

    def __init__(self, builder: Any, matrix: Matrix, from_points: bool) -> None:
        self.builder, self.matrix, self.from_points = builder, matrix, from_points
        self.code = Emitter(builder, LANES)

    def write(self, source: Sequence[Any], target: Sequence[Any], finish: Callable[[Any, Any], Any]) -> None:
        """Emit one transform. finish: function that maps a result and its address to the vector to write."""
        rows, columns = len(self.matrix), len(self.matrix[0])
        grid = [[self.code.load(place) for place in line] for line in self._places(source, columns)]
        half = [self._multiply(column) for column in zip(*grid, strict=True)]
        result = [self._multiply(line) for line in zip(*half, strict=True)]
        for line, places in zip(result, self._places(target, rows), strict=True):
            for value, place in zip(line, places, strict=True):
                self.code.store(finish(value, place), place)

    def _places(self, start: Sequence[Any], size: int) -> list[list[Any]]:
        builder, (base, row_step, column_step) = self.builder, start
        rows = [builder.add(base, builder.mul(row_step, Emitter.word(row))) for row in range(size)]
        steps = [builder.mul(column_step, Emitter.word(column)) for column in range(size)]
        return [[builder.add(row, step) for step in steps] for row in rows]

    def _multiply(self, values: Sequence[Any]) -> list[Any]:
        """matrix · values. Points of opposite sign are processed together: their sums and differences are computed
        once."""
        pairs = range(1, max(map(len, (self.matrix, values))) - 2, 2)
        builder = self.builder
        if self.from_points:
            mixed, columns = list(values), list(zip(*self.matrix, strict=True))
            for one in pairs:
                left, right = columns[one], columns[one + 1]
                mixed[one] = builder.fadd(values[one], values[one + 1])
                mixed[one + 1] = builder.fsub(values[one], values[one + 1])
                columns[one] = tuple((a + b) / 2 for a, b in zip(left, right, strict=True))
                columns[one + 1] = tuple((a - b) / 2 for a, b in zip(left, right, strict=True))
            return [self._sum(row, mixed) for row in zip(*columns, strict=True)]
        made: dict[int, Any] = {}
        for one in pairs:
            left, right = self.matrix[one], self.matrix[one + 1]
            even = self._sum([(a + b) / 2 for a, b in zip(left, right, strict=True)], values)
            odd = self._sum([(a - b) / 2 for a, b in zip(left, right, strict=True)], values)
            made |= {one: builder.fadd(even, odd), one + 1: builder.fsub(even, odd)}
        return [made[row] if row in made else self._sum(factors, values) for row, factors in enumerate(self.matrix)]

    def _sum(self, factors: Sequence[Fraction], values: Sequence[Any]) -> Any:
        """Σ factor · value, beginning with terms that need no product."""
        builder, total = self.builder, None
        terms = [(factor, value) for factor, value in zip(factors, values, strict=True) if factor]
        for factor, value in sorted(terms, key=lambda term: (abs(term[0]) != 1, term[0] < 0)):
            constant = self.code.constant(float(factor))
            if abs(factor) != 1:
                total = builder.fmul(value, constant) if total is None else self.code.fused(value, constant, total)
            elif total is None:
                total = value if factor > 0 else builder.fneg(value)
            else:
                total = builder.fadd(total, value) if factor > 0 else builder.fsub(total, value)
        return total

    def raised(self, shift: Any, floor: Any) -> Callable[[Any, Any], Any]:
        """The function for max(value + shift, floor), in which NaN stays NaN. shift: the address of a vector. floor: a
        number."""
        added, least = self.code.load(shift), self.code.splat(floor)
        return lambda value, place: self.code.floored(self.builder.fadd(value, added), least)

    def added(self, skipped: Any) -> Callable[[Any, Any], Any]:
        """The function for target + value, except in the first `skipped` lanes. None: all lanes, which is faster."""
        builder, code = self.builder, self.code
        if skipped is None:
            return lambda value, place: builder.fadd(code.load(place), value)
        new = builder.icmp_signed(">=", code.indices, code.splat(builder.trunc(skipped, code.lane)))

        def finish(value: Any, place: Any) -> Any:
            before = code.load(place)
            return builder.select(new, builder.fadd(before, value), before)

        return finish


@instruction
def _sandwich(
    typing_context: Any, which: Any, outputs: Any, kernel: Any, source: Any, source_row: Any, source_column: Any,
    target: Any, target_row: Any, target_column: Any, shift: Any, floor: Any, skipped: Any,
) -> Any:  # fmt: skip
    """Apply the transform of the literal sizes to one grid of vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sandwich = _Sandwich(builder, *_matrix(which.literal_value, outputs.literal_value, kernel.literal_value))
        finish = {
            OUTPUT: lambda: sandwich.raised(*arguments[9:11]),
            INPUT_GRADIENT: lambda: sandwich.added(None if nothing_skipped else arguments[11]),
        }
        made = finish.get(which.literal_value, lambda: lambda value, place: value)()
        sandwich.write(arguments[3:6], arguments[6:9], made)
        return context.get_dummy_value()

    if not all(isinstance(size, types.IntegerLiteral) for size in (which, outputs, kernel)):
        return None
    nothing_skipped = isinstance(skipped, types.IntegerLiteral)
    last = skipped if nothing_skipped else types.int64
    return types.void(which, outputs, kernel, *[types.int64] * 7, types.float32, last), generate


@functools.cache
def transform(which: int, outputs: int, kernel: int) -> NativeFunction:
    """The compiled transform of a row of tiles. which: INPUT, WEIGHTS, … outputs, kernel: numbers of outputs and of
    kernel elements in a row."""

    def transform_pass(block: Any) -> int:
        source, source_row, source_column = block.source, block.source_row, block.source_column
        target, target_row, target_column = block.target, block.target_row, block.target_column
        shift, floor = block.shift, np.float32(block.floor)
        last, rest = block.elements - LANES, block.elements % LANES
        for tile in range(block.tiles):
            here, there = source + tile * block.source_tile, target + tile * block.target_tile
            for place in range(0, 4 * last + 1, 4 * LANES):
                _sandwich(
                    which, outputs, kernel, here + place, source_row, source_column,
                    there + place, target_row, target_column, shift + place, floor, 0,
                )  # fmt: skip
            if rest != 0:  # the last vector overlaps the previous one
                place = 4 * last
                _sandwich(
                    which, outputs, kernel, here + place, source_row, source_column,
                    there + place, target_row, target_column, shift + place, floor, LANES - rest,
                )  # fmt: skip
        return 0

    transform_pass.__name__ = f"winograd_{which}_{outputs}_{kernel}"
    return native_pass(TRANSFORM)(transform_pass)


@instruction
def transpose_square(typing_context: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> Any:
    """Transpose LANES × LANES numbers, given addresses, and distances in bytes between rows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = Emitter(builder, LANES)

        def place(base: Any, step: Any, row: int) -> Any:
            return builder.add(base, builder.mul(step, code.word(row)))

        rows = [code.load(place(arguments[0], arguments[1], row)) for row in range(LANES)]
        distance = 1
        while distance < LANES:  # rows i and i + distance exchange squares of that size
            low_lanes = [lane - distance + LANES if lane & distance else lane for lane in range(LANES)]
            masks = [ir.Constant(code.vector(code.lane), [lane + more for lane in low_lanes]) for more in (0, distance)]
            for low in (row for row in range(LANES) if not row & distance):
                pair = rows[low], rows[low + distance]
                rows[low], rows[low + distance] = (builder.shuffle_vector(*pair, mask) for mask in masks)
            distance *= 2
        for number, row in enumerate(rows):
            code.store(row, place(arguments[2], arguments[3], number))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def bound_transform(which: int, outputs: int, kernel: int, **arguments: Value) -> dict[str, Value]:
    """The fields of `BOUND_TRANSFORM`. arguments: fields of `TRANSFORM`; the others are 0."""
    block = {**dict.fromkeys(TRANSFORM.names, 0), **arguments}
    return {"function": transform(which, outputs, kernel), "block": block}


@inlined
def run_transform(transform: Any, source: int, target: int) -> None:
    """Run a `BOUND_TRANSFORM`, given the addresses of its first source tile and its first target tile."""
    transform.block.source, transform.block.target = source, target
    call_address(transform.function, address_of(transform.block), 0, 0, 0)
