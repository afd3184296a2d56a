"""Element-wise sums, by the vector pass with constant coefficients, products and maxima."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments, Value
from crossbow.kernels.compiled import (
    NativeFunction,
    float32_at,
    inlined,
    int64_at,
    native_pass,
    prepared_pass,
    tail,
    uint8_at,
)
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
    """Write Σ coefficient × buffer over all buffers that are read (relu: max(…, 0)), in the order of memory."""
    combine.address  # noqa: B018 - compile while preparing
    constants, reads, (write,) = np.array(coefficients, np.float64), request.reads, request.writes

    def bind(buffers: Buffers) -> Sequence[Call]:
        sums = [(buffers[write], [buffers[role] for role in reads])]
        return (combination_call(request.label, sums, constants, relu),)

    return request.prepared("numba", bind)


@PASSES.kernel(ProductForward, lambda request: alike(*request.xs, request.y))
def product_forward(request: ProductForward) -> PreparedKernel:
    return _prepared(request, multiply, request.y, request.reads)


@PASSES.kernel(ProductBackward, lambda request: alike(*request.xs, request.dy))
def product_backward(request: ProductBackward) -> PreparedKernel:
    return _prepared(request, multiply, request.dy, request.reads)


@PASSES.kernel(MaximumForward, lambda request: alike(*request.xs, request.y))
def maximum_forward(request: MaximumForward) -> PreparedKernel:
    if request.phase is Phase.CHECK:
        return _prepared(request, largest, request.y, request.reads)
    return _prepared(request, first_largest, request.y, request.reads, kept="kept")


@PASSES.kernel(MaximumBackward, lambda request: alike(*request.xs, request.dy))
def maximum_backward(request: MaximumBackward) -> PreparedKernel:
    places: dict[str, Any] = {"dy": "output_gradient", "first": "kept", "dx": "input_gradient"}
    return prepared_pass(request, select, **places, length=request.dy.elements, number=request.index)


def _prepared(
    request: Request, function: NativeFunction, y: Tensor, terms: Sequence[str], **kept: Value
) -> PreparedKernel:
    """A prepared kernel with a pass over terms of y's shape. kept: the role of the buffer for the number of each
    element's term, if any."""
    function.address  # noqa: B018 - compile while preparing
    target = request.writes[0]

    def bind(buffers: Buffers) -> Sequence[Call]:
        call = function.call(
            request.label,
            length=y.elements,
            target=buffers[target],
            **{name: buffers[role] for name, role in kept.items()},
            count=len(terms),
            terms=[address(buffers[role]) for role in terms],
            references=tuple(buffers.values()),
        )
        return (call,)

    return request.prepared("numba", bind, kept=y.elements if kept else 0)


# The passes work chunk by chunk: the first term is copied, and the others are applied to the chunk in the cache. So the
# same code works in place, and the compiler need not check for overlap.


@inlined
def _copy(source: Any, target: Any, start: int, stop: int) -> None:
    if source != target:
        for i in range(start, stop):
            float32_at(target)[i] = float32_at(source)[i]


TERMS = Arguments(length=int, target=Address, count=int, tail="terms")
"""terms: the addresses of `count` operands."""


@native_pass(TERMS)
def multiply(block: Any) -> int:
    target, terms = float32_at(block.target), int64_at(tail(block))
    for start in range(0, block.length, CHUNK):
        stop = min(start + CHUNK, block.length)
        _copy(terms[0], block.target, start, stop)
        for number in range(1, block.count):
            term = float32_at(terms[number])
            for i in range(start, stop):
                target[i] *= term[i]
    return 0


@native_pass(TERMS)
def largest(block: Any) -> int:
    """NaN is larger than every number."""
    target, terms = float32_at(block.target), int64_at(tail(block))
    for start in range(0, block.length, CHUNK):
        stop = min(start + CHUNK, block.length)
        _copy(terms[0], block.target, start, stop)
        for number in range(1, block.count):
            term = float32_at(terms[number])
            for i in range(start, stop):
                old, new = target[i], term[i]
                target[i] = new if (new > old) | (new != new) & (old == old) else old
    return 0


@native_pass(Arguments(length=int, target=Address, kept=Address, count=int, tail="terms"))
def first_largest(block: Any) -> int:
    """kept: the number of the term from which each element comes."""
    target, first, terms = float32_at(block.target), uint8_at(block.kept), int64_at(tail(block))
    for start in range(0, block.length, CHUNK):
        stop = min(start + CHUNK, block.length)
        _copy(terms[0], block.target, start, stop)
        for i in range(start, stop):
            first[i] = np.uint8(0)
        for number in range(1, block.count):
            term = float32_at(terms[number])
            for i in range(start, stop):
                old, new = target[i], term[i]
                larger = (new > old) | (new != new) & (old == old)
                target[i] = new if larger else old
                first[i] = np.uint8(number) if larger else first[i]
    return 0


@native_pass(Arguments(dy=Address, first=Address, dx=Address, length=int, number=int))
def select(block: Any) -> int:
    """dx = dy for the elements that came from the term of this number, else 0."""
    dx, first, number = float32_at(block.dx), uint8_at(block.first), np.uint8(block.number)
    for start in range(0, block.length, CHUNK):
        stop = min(start + CHUNK, block.length)
        _copy(block.dy, block.dx, start, stop)
        for i in range(start, stop):
            dx[i] = dx[i] if first[i] == number else np.float32(0)
    return 0
