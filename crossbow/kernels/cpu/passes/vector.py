"""Linear combinations of vectors, and their norm: the arithmetic of solvers and rules, in one pass over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import (
    float32_at,
    float64_at,
    inlined,
    instruction,
    int64_at,
    native_pass,
    tail,
)
from crossbow.kernels.cpu.emitter import Emitter
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.native import NativeCall
from crossbow.kernels.reference.vector import check_coefficients, check_lengths
from crossbow.kernels.requests import ClipCoefficients, LinearCombination, SquaredNorm
from crossbow.types import Array, address

CHUNK = 1024
"""Number of elements that all assignments process before the next ones: shared terms stay in the first-level cache."""
WIDTH = 16
"""Number of elements that are processed together."""
FEW = 4
"""Maximum number of terms that are added at once; partial sums of more terms stay in the first-level cache."""


def _place(builder: Any, base: Any, index: Any) -> Any:
    """The address of an element."""
    return builder.add(base, builder.shl(index, Emitter.word(2)))


_SPAN = types.void(*[types.int64] * 6)


def _span(count: int, *, carried: bool = False, relu: bool = False) -> Any:
    """Compiled code for target[i] = Σ coefficients[j] · terms[j][i] with `count` terms and first ≤ i < last.

    It uses vectors explicitly, because a loop over numbers is not vectorised if the target is one of the terms.
    Products and sums are rounded one by one, as in NumPy.

    carried: the sum starts at carry[i]. relu: max(target, 0).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, carry, terms, coefficients, first, last = arguments
        code = Emitter(builder, WIDTH)
        sources = [code.element(terms, j, code.word) for j in range(count)]
        factors = [code.splat(code.element(coefficients, j)) for j in range(count)]
        with cgutils.for_range_slice(builder, first, last, code.word(WIDTH), code.word) as (index, _):
            total = code.load(_place(builder, carry, index)) if carried else None
            for source, factor in zip(sources, factors, strict=True):
                product = builder.fmul(factor, code.load(_place(builder, source, index)))
                total = product if total is None else builder.fadd(total, product)
            if relu:
                total = code.floored(total, code.constant(0.0))
            code.store(total, _place(builder, target, index))
        return context.get_dummy_value()

    @instruction
    def span(typing_context: Any, target: Any, carry: Any, terms: Any, coefficients: Any, first: Any, last: Any) -> Any:
        return _SPAN, generate

    return span


_span1, _span2, _span3, _span4 = _span(1), _span(2), _span(3), _span(4)
_more1, _more2, _more3, _more4 = (_span(count, carried=True) for count in (1, 2, 3, 4))
_span2_relu = _span(2, relu=True)


_variable: Callable[..., Any] = cgutils.alloca_once_value


@instruction
def _add_squares(typing_context: Any, sums: Any, vector: Any, last: Any) -> Any:
    """sums[j] += Σ vector[i]², for i < last with i ≡ j (mod 16), in double precision, one i after the other."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, vector, last = arguments
        code = Emitter(builder, WIDTH)
        total = _variable(builder, code.load(sums, code.double))
        with cgutils.for_range_slice(builder, code.word(0), last, code.word(WIDTH), code.word) as (index, _):
            value = code.widened(code.load(_place(builder, vector, index)))
            builder.store(builder.fadd(builder.load(total), builder.fmul(value, value)), total)
        code.store(builder.load(total), sums)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@inlined
def round_coefficients(coefficients: int, count: int, rounded: int) -> None:
    """The coefficients in the vectors' precision."""
    source, target = float64_at(coefficients), float32_at(rounded)
    for index in range(count):
        target[index] = np.float32(source[index])


@inlined
def add_up(target: int, terms: int, factors: int, count: int, room: int, start: int, stop: int, relu: int) -> None:
    """target[i] = Σ factors[j] · terms[j][i] for start ≤ i < stop, four terms at a time. Partial sums are stored in
    `room`, which has a place for each i, so the target is not written before its last terms are read."""
    whole = start + (stop - start) // WIDTH * WIDTH
    first, carry, done = whole, room - 4 * start, 4
    if relu != 0:
        if count == 2:
            _span2_relu(target, carry, terms, factors, start, whole)
        else:
            first = start
    elif count == 1:
        _span1(target, carry, terms, factors, start, whole)
    elif count == 2:
        _span2(target, carry, terms, factors, start, whole)
    elif count == 3:
        _span3(target, carry, terms, factors, start, whole)
    elif count == 4:
        _span4(target, carry, terms, factors, start, whole)
    else:
        _span4(carry, carry, terms, factors, start, whole)
        while count - done > 4:
            _more4(carry, carry, terms + 8 * done, factors + 4 * done, start, whole)
            done += 4
        if count - done == 1:
            _more1(target, carry, terms + 8 * done, factors + 4 * done, start, whole)
        elif count - done == 2:
            _more2(target, carry, terms + 8 * done, factors + 4 * done, start, whole)
        elif count - done == 3:
            _more3(target, carry, terms + 8 * done, factors + 4 * done, start, whole)
        else:
            _more4(target, carry, terms + 8 * done, factors + 4 * done, start, whole)
    result, factor, source = float32_at(target), float32_at(factors), int64_at(terms)
    for index in range(first, stop):
        total = factor[0] * float32_at(source[0])[index]
        for term in range(1, count):
            total += factor[term] * float32_at(source[term])[index]
        result[index] = np.float32(0) if relu != 0 and total < 0 else total


COMBINE = Arguments(
    length=int,
    coefficients=Address,
    terms=int,
    rounded=Address,
    sums=int,
    relu=int,
    room=Address,
    signs=int,
    uses=int,
    tail="rows",
)
"""coefficients: float64, one for each of `terms` terms of `sums` sums. relu: whether targets are max(sum, 0). rounded,
room: workspace for the coefficients as float32, and for partial sums. rows: for each of `signs` signs, its vector and
workspace; for each of `uses` uses of a sign, the index of the term in `rows`, and the sign; then, for each sum, its
target, its number of terms, and the terms."""


@native_pass(COMBINE)
def combine(block: Any) -> int:
    rows = int64_at(tail(block))
    round_coefficients(block.coefficients, block.terms, block.rounded)
    for start in range(0, block.length, CHUNK):
        stop = min(start + CHUNK, block.length)
        row = 0
        for _ in range(block.signs):
            vector, sign = float32_at(rows[row]), float32_at(rows[row + 1])
            for index in range(start, stop):
                value = vector[index]
                sign[index - start] = np.float32(1) if value > 0 else np.float32(-1) if value < 0 else value
            row += 2
        for _ in range(block.uses):
            rows[rows[row]] = rows[2 * rows[row + 1] + 1] - 4 * start
            row += 2
        factors = block.rounded
        for _ in range(block.sums):
            count, terms = rows[row + 1], tail(block) + 8 * (row + 2)
            add_up(rows[row], terms, factors, count, block.room, start, stop, block.relu)
            row += 2 + count
            factors += 4 * count
    return 0


ADD_SQUARES = Arguments(
    length=int,
    coefficients=Address,
    count=int,
    rounded=Address,
    room=Address,
    sum=Address,
    squares=Address,
    square=Address,
    tail="terms",
)
"""The squared norm of one sum. sum, squares: workspace for a chunk of it, and for a sum of squares for each lane."""


@native_pass(ADD_SQUARES)
def add_squares(block: Any) -> int:
    round_coefficients(block.coefficients, block.count, block.rounded)
    total, squares, terms = float32_at(block.sum), float64_at(block.squares), tail(block)
    for lane in range(WIDTH):
        squares[lane] = 0.0
    for start in range(0, block.length, CHUNK):
        stop = min(start + CHUNK, block.length)
        add_up(block.sum - 4 * start, terms, block.rounded, block.count, block.room, start, stop, 0)
        last = (stop - start + WIDTH - 1) // WIDTH * WIDTH
        for index in range(stop - start, last):
            total[index] = np.float32(0)
        _add_squares(block.squares, block.sum, last)
    result = 0.0
    for lane in range(WIDTH):
        result += squares[lane]
    float64_at(block.square)[0] = result
    return 0


CLIP = Arguments(
    squares=Address, count=int, limit=float, coefficients=Address, clipped=Address, length=int, marks=Address
)
"""Scales the marked coefficients, of `length` in all, if the norm, from `count` squares, exceeds the limit."""


@native_pass(CLIP)
def clip(block: Any) -> int:
    squares, coefficients, clipped = (
        float64_at(block.squares),
        float64_at(block.coefficients),
        float64_at(block.clipped),
    )
    limit, marks = block.limit, int64_at(block.marks)
    total, factor = 0.0, 1.0
    for index in range(block.count):
        total += squares[index]
    norm = math.sqrt(total)
    if not norm <= limit:  # NaN is not hidden
        factor = limit / norm
    for index in range(block.length):
        clipped[index] = coefficients[index] * factor if marks[index] != 0 else coefficients[index]
    return 0


@PASSES.kernel(LinearCombination, lambda request: request.dtype == np.float32)
def linear_combination(request: LinearCombination) -> PreparedKernel:
    assignments, sources = request.assignments, dict(request.signs)
    combine.address  # noqa: B018 - compile while preparing

    def bind(buffers: Buffers) -> Sequence[Call]:
        vectors = {name: buffers[name] for name in dict.fromkeys((*request.writes, *request.vectors))}
        check_lengths(vectors)
        sums = [(a.target, a.terms) for a in assignments]
        return (_combination(request.label, vectors, sums, buffers["coefficients"], sources),)

    return request.prepared("numba", bind)


def combination_call(
    name: str, sums: Sequence[tuple[Array, Sequence[Array]]], coefficients: Array, relu: bool = False
) -> NativeCall:
    """The call that computes the sums, each given as (target, terms), over arrays whose memory is contiguous.

    relu: each target is max(sum, 0).
    """
    arrays = [array for target, terms in sums for array in (target, *terms)]
    names = {id(array): str(number) for number, array in enumerate(arrays)}
    named = [(names[id(target)], tuple(names[id(term)] for term in terms)) for target, terms in sums]
    return _combination(name, {names[id(array)]: array for array in arrays}, named, coefficients, {}, relu)


def _combination(
    name: str,
    vectors: Mapping[str, Array],
    sums: Sequence[tuple[str, Sequence[str]]],
    coefficients: Array,
    signs: Mapping[str, str],
    relu: bool = False,
) -> NativeCall:
    """The call of `combine`."""
    expected = sum(len(terms) for _, terms in sums)
    check_coefficients(coefficients, expected)
    rounded = np.zeros(expected, np.float32)
    room = np.zeros(CHUNK if max(len(terms) for _, terms in sums) > FEW else 0, np.float32)
    used = [sign for sign in signs if any(sign in terms for _, terms in sums)]
    places = {sign: np.zeros(CHUNK, np.float32) for sign in used}
    uses = sum(term in places for _, terms in sums for term in terms)
    rows = [each for sign in used for each in (address(vectors[signs[sign]]), address(places[sign]))]
    sums_at = len(rows) + 2 * uses
    written: list[int] = []
    positions: list[int] = []
    for target, terms in sums:
        written += [address(vectors[target]), len(terms)]
        for term in terms:
            if term in places:
                positions += [sums_at + len(written), used.index(term)]
            written.append(0 if term in places else address(vectors[term]))
    return combine.call(
        name,
        length=vectors[sums[0][0]].size,
        coefficients=coefficients,
        terms=expected,
        rounded=rounded,
        sums=len(sums),
        relu=int(relu),
        room=room,
        signs=len(used),
        uses=uses,
        rows=[*rows, *positions, *written],
        references=(*places.values(), *vectors.values()),
    )


@PASSES.kernel(SquaredNorm, lambda request: request.dtype == np.float32)
def squared_norm(request: SquaredNorm) -> PreparedKernel:
    terms = request.terms
    add_squares.address  # noqa: B018 - compile while preparing

    def bind(buffers: Buffers) -> Sequence[Call]:
        vectors, coefficients, square = [buffers[term] for term in terms], buffers["coefficients"], buffers["square"]
        length = check_lengths(dict(zip(terms, vectors, strict=True)))
        check_coefficients(coefficients, len(terms))
        rounded, room = np.zeros(len(terms), np.float32), np.zeros((2, CHUNK), np.float32)
        call = add_squares.call(
            request.label,
            length=length,
            coefficients=coefficients,
            count=len(terms),
            rounded=rounded,
            room=room[0],
            sum=room[1],
            squares=np.zeros(WIDTH),
            square=square,
            terms=[address(vector) for vector in vectors],
            references=tuple(vectors),
        )
        return (call,)

    return request.prepared("numba", bind)


@PASSES.kernel(ClipCoefficients)
def clip_coefficients(request: ClipCoefficients) -> PreparedKernel:
    limit, clipped = request.limit, request.clipped
    clip.address  # noqa: B018 - compile while preparing
    marks = np.array(clipped, np.int64)

    def bind(buffers: Buffers) -> Sequence[Call]:
        squares, coefficients, target = (buffers[role] for role in request.roles)
        for array in (coefficients, target):
            check_coefficients(array, len(marks))
        call = clip.call(
            request.label,
            squares=squares,
            count=squares.size,
            limit=limit,
            coefficients=coefficients,
            clipped=target,
            length=len(marks),
            marks=marks,
        )
        return (call,)

    return request.prepared("numba", bind)
