"""Linear combinations of vectors: the arithmetic of solvers and rules, in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from crossbow.kernels.compiled import float32_at, float64_at, int64_at, native
from crossbow.kernels.interface import Assignment, Buffers, Call, PreparedKernel
from crossbow.kernels.native import NativeCall
from crossbow.types import Array, address

CHUNK = 1024
"""Elements that every assignment covers before the next ones: what they share stays in the first-level cache."""
WIDTH = 16
"""Elements that are handled together."""
AT_ONCE = 4
"""Terms that are added up in registers; longer sums go through a scratch chunk."""


def _weighted_span(count: int) -> Any:
    """Compiled code that writes Σ coefficients[j] · terms[j] of `count` vectors to the target, for elements from `first`
    to `last` (a multiple of 16 of them).

    Written in vectors, because a loop over numbers is not vectorised where the target is one of the terms. Products and
    sums are rounded one by one, as in NumPy: nothing is fused.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, terms, coefficients, first, last = arguments
        word, single = ir.IntType(64), ir.FloatType()
        vector = ir.VectorType(single, WIDTH)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), None)

        def element(base: Any, kind: Any, index: int) -> Any:
            pointer = builder.inttoptr(base, kind.as_pointer())
            return builder.load(builder.gep(pointer, [word(index)]))

        def splat(value: Any) -> Any:
            lane = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
            return builder.shuffle_vector(lane, ir.Constant(vector, ir.Undefined), zeros)

        sources = [element(terms, word, j) for j in range(count)]
        factors = [splat(element(coefficients, single, j)) for j in range(count)]

        def place(base: Any, index: Any) -> Any:
            return builder.inttoptr(builder.add(base, builder.shl(index, word(2))), vector.as_pointer())

        with cgutils.for_range_slice(builder, first, last, word(WIDTH), word) as (index, _):
            total = None
            for source, factor in zip(sources, factors, strict=True):
                product = builder.fmul(factor, builder.load(place(source, index), align=4))
                total = product if total is None else builder.fadd(total, product)
            builder.store(total, place(target, index), align=4)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def weighted_span(typing_context: Any, target: Any, terms: Any, coefficients: Any, first: Any, last: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return weighted_span


_span1, _span2, _span3, _span4 = (_weighted_span(count) for count in range(1, AT_ONCE + 1))


@native
def combine(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: length, coefficients, their number, rounded coefficients (room), chunk, number of sums, then for every sum
    its target, number of terms (at most 4), place of its first coefficient, four terms.
    """
    block = int64_at(arguments)
    length, chunk = block[0], block[4]
    coefficients, rounded = float64_at(block[1]), float32_at(block[3])
    for index in range(block[2]):
        rounded[index] = np.float32(coefficients[index])
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        whole = start + (stop - start) // WIDTH * WIDTH
        for number in range(block[5]):
            row = 6 + 7 * number
            target, count = block[row], block[row + 1]
            factors = block[3] + 4 * block[row + 2]
            terms = np.int64(arguments) + 8 * (row + 3)
            if count == 1:
                _span1(target, terms, factors, start, whole)
            elif count == 2:
                _span2(target, terms, factors, start, whole)
            elif count == 3:
                _span3(target, terms, factors, start, whole)
            else:
                _span4(target, terms, factors, start, whole)
            factor = float32_at(factors)
            for index in range(whole, stop):
                total = factor[0] * float32_at(block[row + 3])[index]
                for term in range(1, count):
                    total += factor[term] * float32_at(block[row + 3 + term])[index]
                float32_at(target)[index] = total
    return 0


def linear_combination(assignments: Sequence[Assignment]) -> PreparedKernel:
    """The named vectors, coefficients → the targets: as `KernelLibrary.linear_combination`, in float32."""
    combine.address  # noqa: B018 - compile while preparing
    terms = tuple(dict.fromkeys(term for assignment in assignments for term in assignment.terms))
    targets = tuple(dict.fromkeys(assignment.target for assignment in assignments))

    def bind(buffers: Buffers) -> Sequence[Call]:
        vectors = {name: buffers[name] for name in dict.fromkeys((*targets, *terms))}
        lengths = {name: vector.shape for name, vector in vectors.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"expected vectors of one length. Received: {lengths}")
        sums = [(vectors[a.target], [vectors[term] for term in a.terms]) for a in assignments]
        return (combination_call("linear_combination", sums, buffers["coefficients"]),)

    return PreparedKernel("linear_combination numba", (*terms, "coefficients"), targets, bind)


def combination_call(name: str, sums: Sequence[tuple[Array, Sequence[Array]]], coefficients: Array) -> NativeCall:
    """The call that does the sums, each (target, terms), over memory that is contiguous."""
    expected = sum(len(terms) for _, terms in sums)
    if coefficients.dtype != np.float64 or coefficients.shape != (expected,):
        raise ValueError(
            f"expected {expected} float64 coefficients, one for each term. "
            f"Received: {coefficients.dtype} of shape {coefficients.shape}"
        )
    length = sums[0][0].size
    # Sums of more than four terms: partial sums times 1 and the next three terms, left to right; × 1 changes nothing.
    scratch = np.zeros(CHUNK, np.float32)
    rows: list[int] = []
    order: list[int] = []
    position = 0
    for target, terms in sums:
        pass
    raise NotImplementedError
