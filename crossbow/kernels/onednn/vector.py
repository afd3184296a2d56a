"""Linear combinations of vectors: the arithmetic of solvers and rules, in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from crossbow.kernels.compiled import float32_at, float64_at, instruction, int64_at, native
from crossbow.kernels.interface import Assignment, Buffers, Call, PreparedKernel
from crossbow.kernels.native import NativeCall
from crossbow.types import Array, address

CHUNK = 1024
"""Elements that every assignment covers before the next ones: what they share stays in the first-level cache."""
WIDTH = 16
"""Elements that are handled together."""


class _VectorCode:
    """Writes instructions on vectors of 16 numbers.

    Vectors, because a loop over numbers is not vectorised where the target is one of the terms. Products and sums are
    rounded one by one, as in NumPy: nothing is fused.
    """

    word, single = ir.IntType(64), ir.FloatType()
    vector = ir.VectorType(single, WIDTH)

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def element(self, base: Any, kind: Any, index: Any) -> Any:
        pointer = self.builder.inttoptr(base, kind.as_pointer())
        return self.builder.load(self.builder.gep(pointer, [index]))

    def splat(self, value: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), None)
        return self.builder.shuffle_vector(
            self.builder.insert_element(undefined, value, ir.IntType(32)(0)), undefined, zeros
        )

    def place(self, base: Any, index: Any) -> Any:
        location = self.builder.add(base, self.builder.shl(index, self.word(2)))
        return self.builder.inttoptr(location, self.vector.as_pointer())

    def read(self, base: Any, index: Any) -> Any:
        return self.builder.load(self.place(base, index), align=4)

    def write(self, value: Any, base: Any, index: Any) -> None:
        self.builder.store(value, self.place(base, index), align=4)

    def steps(self, first: Any, last: Any) -> Any:
        return cgutils.for_range_slice(self.builder, first, last, self.word(WIDTH), self.word)


_SPAN = types.void(*[types.int64] * 5)


def _span(count: int, relu: bool = False) -> Any:
    """Compiled code for target[i] = Σ coefficients[j] · terms[j][i] with `count` terms and first ≤ i < last.

    relu: max(target, 0).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, terms, coefficients, first, last = arguments
        code = _VectorCode(builder)
        sources = [code.element(terms, code.word, code.word(j)) for j in range(count)]
        factors = [code.splat(code.element(coefficients, code.single, code.word(j))) for j in range(count)]
        with code.steps(first, last) as (index, _):
            total = builder.fmul(factors[0], code.read(sources[0], index))
            for source, factor in zip(sources[1:], factors[1:], strict=True):
                total = builder.fadd(total, builder.fmul(factor, code.read(source, index)))
            if relu:
                zero = ir.Constant(code.vector, None)
                # "Less than" is false of what is not a number, which stays what it is.
                total = builder.select(builder.fcmp_ordered("<", total, zero), zero, total)
            code.write(total, target, index)
        return context.get_dummy_value()

    @instruction
    def span(typing_context: Any, target: Any, terms: Any, coefficients: Any, first: Any, last: Any) -> Any:
        return _SPAN, generate

    return span


_span1, _span2, _span3, _span4 = _span(1), _span(2), _span(3), _span(4)
_span2_relu = _span(2, relu=True)


@native
def combine(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: length, float64 coefficients, their number, room for them as float32, number of sums, whether targets are
    max(sum, 0); then for every sum its target, its number of terms, and these."""
    block = int64_at(arguments)
    coefficients, rounded = float64_at(block[1]), float32_at(block[3])
    for index in range(block[2]):
        rounded[index] = np.float32(coefficients[index])
    for start in range(0, block[0], CHUNK):
        stop = min(start + CHUNK, block[0])
        whole = start + (stop - start) // WIDTH * WIDTH
        row, factors, relu = 6, block[3], block[5]
        for _ in range(block[4]):
            target, count, terms = block[row], block[row + 1], np.int64(arguments) + 8 * (row + 2)
            first = whole
            if relu != 0:
                if count == 2:
                    _span2_relu(target, terms, factors, start, whole)
                else:
                    first = start
            elif count == 1:
                _span1(target, terms, factors, start, whole)
            elif count == 2:
                _span2(target, terms, factors, start, whole)
            elif count == 3:
                _span3(target, terms, factors, start, whole)
            elif count == 4:
                _span4(target, terms, factors, start, whole)
            else:
                first = start
            result, factor = float32_at(target), float32_at(factors)
            for index in range(first, stop):
                total = factor[0] * float32_at(block[row + 2])[index]
                for term in range(1, count):
                    total += factor[term] * float32_at(block[row + 2 + term])[index]
                result[index] = np.float32(0) if relu != 0 and total < 0 else total
            row += 2 + count
            factors += 4 * count
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


def combination_call(
    name: str, sums: Sequence[tuple[Array, Sequence[Array]]], coefficients: Array, relu: bool = False
) -> NativeCall:
    """The call that does the sums, each (target, terms), over arrays whose memory is contiguous.

    relu: each target is max(sum, 0).
    """
    expected = sum(len(terms) for _, terms in sums)
    if coefficients.dtype != np.float64 or coefficients.shape != (expected,):
        raise ValueError(
            f"expected {expected} float64 coefficients, one for each term. "
            f"Received: {coefficients.dtype} of shape {coefficients.shape}"
        )
    rounded = np.zeros(expected, np.float32)
    slots = [sums[0][0].size, address(coefficients), expected, address(rounded), len(sums), int(relu)]
    for target, terms in sums:
        slots += [address(target), len(terms), *map(address, terms)]
    return combine.call(name, *slots, references=(coefficients, rounded, *sums))
