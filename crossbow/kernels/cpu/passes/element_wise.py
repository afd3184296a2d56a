"""Tensors, element by element: sums by the vector pass with coefficients that never change, products and maxima."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.kernels.compiled import NativeFunction, float32_at, inlined, int64_at, native, uint8_at
from crossbow.kernels.cpu.passes.vector import CHUNK, combination_call, combine
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import (
    MaximumBackward,
    MaximumForward,
    ProductBackward,
    ProductForward,
    Request,
    ScaledGradient,
    WeightedSum,
)
from crossbow.types import Phase, Tensor, address


@PASSES.kernel(WeightedSum, lambda request: alike(*request.xs, request.y))
def weighted_sum(request: WeightedSum) -> PreparedKernel:
    return combination(request, request.coefficients, request.relu)


@PASSES.kernel(ScaledGradient, lambda request: alike(request.dy, request.dx))
def scale(request: ScaledGradient) -> PreparedKernel:
    return combination(request, (request.coefficient,))


def combination(request: Request, coefficients: Sequence[float], relu: bool = False) -> PreparedKernel:
    """What is written = Σ coefficient × what is read (relu: max(…, 0)), over the buffers' memory."""
    combine.address  # noqa: B018 - compile while preparing
    constants, reads, (write,) = np.array(coefficients, np.float64), request.reads, request.writes

    def bind(buffers: Buffers) -> Sequence[Call]:
        sums = [(buffers[write], [buffers[role] for role in reads])]
        return (combination_call(request.label, sums, constants, relu),)

    return request.prepared("numba", bind)


@PASSES.kernel(ProductForward, lambda request: alike(*request.xs, request.y))
def product_forward(request: ProductForward) -> PreparedKernel:
    return _prepared(request, multiply, request.y)


@PASSES.kernel(ProductBackward, lambda request: alike(*request.xs, request.dy))
def product_backward(request: ProductBackward) -> PreparedKernel:
    return _prepared(request, multiply, request.dy)


@PASSES.kernel(MaximumForward, lambda request: alike(*request.xs, request.y))
def maximum_forward(request: MaximumForward) -> PreparedKernel:
    if request.phase is Phase.CHECK:
        return _prepared(request, largest, request.y)
    return _prepared(request, first_largest, request.y, kept=request.y.elements)


@PASSES.kernel(MaximumBackward, lambda request: alike(*request.xs, request.dy))
def maximum_backward(request: MaximumBackward) -> PreparedKernel:
    return _prepared(request, select, request.dy, request.index)


def _prepared(request: Request, function: NativeFunction, y: Tensor, *numbers: int, kept: int = 0) -> PreparedKernel:
    """The pass on a block of its length, the addresses of what is written, the number of what is read and its
    addresses, and `numbers`."""
    function.address  # noqa: B018 - compile while preparing

    def bind(buffers: Buffers) -> Sequence[Call]:
        targets, sources = ([address(buffers[role]) for role in roles] for roles in (request.writes, request.reads))
        slots = (y.elements, *targets, len(sources), *sources, *numbers)
        return (function.call(request.label, *slots, references=tuple(buffers.values())),)

    return request.prepared("numba", bind, kept=kept)


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
