"""Tensors, element by element: sums by the vector pass with coefficients that never change, products and maxima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from crossbow.kernels.compiled import NativeFunction, float32_at, inlined, int64_at, native, uint8_at
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.onednn.vector import CHUNK, combination_call, combine
from crossbow.types import Phase, Tensor, address


def weighted_sum(coefficients: Sequence[float], relu: bool) -> PreparedKernel:
    """input0, input1, … → output = Σ coefficient × input (relu: max(output, 0)); may be in place on input0."""
    inputs = tuple(f"input{index}" for index in range(len(coefficients)))
    return combination(f"weighted_sum{' relu' if relu else ''}", inputs, "output", coefficients, relu)


def scale(coefficient: float) -> PreparedKernel:
    """output_gradient → input_gradient = coefficient × output_gradient; may be in place."""
    roles = ("output_gradient", "input_gradient")
    kernel = combination("scale", roles[:1], roles[1], (coefficient,))
    return replace(kernel, alias=roles if coefficient == 1 else None)


def combination(
    name: str, reads: tuple[str, ...], write: str, coefficients: Sequence[float], relu: bool = False
) -> PreparedKernel:
    """write = Σ coefficient × read (relu: max(…, 0)), over the buffers' memory; may be in place on the first."""
    combine.address  # noqa: B018 - compile while preparing
    constants = np.array(coefficients, np.float64)

    def bind(buffers: Buffers) -> Sequence[Call]:
        sums = [(buffers[write], [buffers[role] for role in reads])]
        return (combination_call(name, sums, constants, relu),)

    return PreparedKernel(f"{name} numba", reads, (write,), bind, in_place=(reads[0], write))


def product_forward(xs: Sequence[Tensor]) -> PreparedKernel:
    """input0, input1, … → output; may be in place on input0."""
    return _prepared("product_forward", multiply, _inputs(xs), ("output",), xs[0])


def product_backward(xs: Sequence[Tensor], index: int) -> PreparedKernel:
    """output_gradient, all inputs but this one → input_gradient; may be in place on output_gradient."""
    others = [role for number, role in enumerate(_inputs(xs)) if number != index]
    return _prepared("product_backward", multiply, ("output_gradient", *others), ("input_gradient",), xs[index])


def maximum_forward(xs: Sequence[Tensor], phase: Phase) -> PreparedKernel:
    """input0, input1, … → output (and kept, when training); may be in place on input0."""
    if phase is Phase.CHECK:
        return _prepared("maximum_forward", largest, _inputs(xs), ("output",), xs[0])
    kept = xs[0].elements
    return _prepared("maximum_forward", first_largest, _inputs(xs), ("output", "kept"), xs[0], kept=kept)


def maximum_backward(xs: Sequence[Tensor], index: int) -> PreparedKernel:
    """output_gradient, kept → input_gradient; may be in place on output_gradient."""
    reads = ("output_gradient", "kept")
    return _prepared("maximum_backward", select, reads, ("input_gradient",), xs[index], index)


def _inputs(xs: Sequence[Tensor]) -> tuple[str, ...]:
    return tuple(f"input{number}" for number in range(len(xs)))


def _prepared(
    name: str,
    function: NativeFunction,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    x: Tensor,
    *numbers: int,
    kept: int = 0,
) -> PreparedKernel:
    """The pass on a block of its length, the addresses of what is written, the number of what is read and its
    addresses, and `numbers`; in place on the first that is read."""
    function.address  # noqa: B018 - compile while preparing

    def bind(buffers: Buffers) -> Sequence[Call]:
        targets, sources = ([address(buffers[role]) for role in roles] for roles in (writes, reads))
        slots = (x.elements, *targets, len(sources), *sources, *numbers)
        return (function.call(name, *slots, references=tuple(buffers.values())),)

    return PreparedKernel(f"{name} numba", reads, writes, bind, kept=kept, in_place=(reads[0], writes[0]))


# Chunk by chunk: the first term is copied, and what follows works on a chunk that is in the cache. So one code serves
# in place too, and the compiler has no overlap to fear.


@inlined
def _copy(source: Any, target: Any, start: int, stop: int) -> None:
    if source != target:
        for i in range(start, stop):
            float32_at(target)[i] = float32_at(source)[i]


@native
def multiply(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: length, target, number of terms, these."""
    block = int64_at(arguments)
    target = float32_at(block[1])
    for start in range(0, block[0], CHUNK):
        stop = min(start + CHUNK, block[0])
        _copy(block[3], block[1], start, stop)
        for number in range(1, block[2]):
            term = float32_at(block[3 + number])
            for i in range(start, stop):
                target[i] *= term[i]
    return 0


@native
def largest(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: length, target, number of terms, these. NaN is larger than everything."""
    block = int64_at(arguments)
    target = float32_at(block[1])
    for start in range(0, block[0], CHUNK):
        stop = min(start + CHUNK, block[0])
        _copy(block[3], block[1], start, stop)
        for number in range(1, block[2]):
            term = float32_at(block[3 + number])
            for i in range(start, stop):
                old, new = target[i], term[i]
                target[i] = new if (new > old) | (new != new) & (old == old) else old
    return 0


@native
def first_largest(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: length, target, where to keep which term it was, number of terms, these."""
    block = int64_at(arguments)
    target, first = float32_at(block[1]), uint8_at(block[2])
    for start in range(0, block[0], CHUNK):
        stop = min(start + CHUNK, block[0])
        _copy(block[4], block[1], start, stop)
        for i in range(start, stop):
            first[i] = np.uint8(0)
        for number in range(1, block[3]):
            term = float32_at(block[4 + number])
            for i in range(start, stop):
                old, new = target[i], term[i]
                larger = (new > old) | (new != new) & (old == old)
                target[i] = new if larger else old
                first[i] = np.uint8(number) if larger else first[i]
    return 0


@native
def select(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: length, dx, 2, dy, which term an element came from, the term that dx belongs to."""
    block = int64_at(arguments)
    dx, first, number = float32_at(block[1]), uint8_at(block[4]), np.uint8(block[5])
    for start in range(0, block[0], CHUNK):
        stop = min(start + CHUNK, block[0])
        _copy(block[3], block[1], start, stop)
        for i in range(start, stop):
            dx[i] = dx[i] if first[i] == number else np.float32(0)
    return 0
