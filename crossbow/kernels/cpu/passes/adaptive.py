"""Adaptive steps of vectors, and the count of steps, in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, float64_at, inlined, int64_at, native_pass, prepared_pass, tail
from crossbow.kernels.cpu.passes.vector import CHUNK, add_up, round_coefficients
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.reference.vector import check_coefficients, check_lengths
from crossbow.kernels.requests import AdaptiveStep, CountStep
from crossbow.solver.adaptation import NUMBERS, STEP
from crossbow.types import Array, address

COUNT_OF_NUMBERS = len(NUMBERS)
NO_VELOCITY, OF_GRADIENTS, OF_STEPS = 0, 1, 2
"""Kinds of velocity."""


@inlined
def _adapt(
    kind: int, step: int, squares: int, velocity: int, numbers: int, correction: int, first: int, last: int
) -> None:
    """step[i] contains the descent of element first + i, and then its step. Every operation is rounded, as in NumPy."""
    n, c = float32_at(numbers), float64_at(correction)
    decay, gain, epsilon, keep, part = n[0], n[1], n[2], n[3], n[4]
    a, b = np.float32(c[0]), np.float32(c[1])
    d, s, v = float32_at(step), float32_at(squares + 4 * first), float32_at(velocity + 4 * first)
    if kind == NO_VELOCITY:
        for i in range(last - first):
            s[i] = decay * s[i] + gain * (d[i] * d[i])
            d[i] = a * d[i] / (b * np.sqrt(s[i]) + epsilon)
    elif kind == OF_GRADIENTS:
        for i in range(last - first):
            s[i] = decay * s[i] + gain * (d[i] * d[i])
            v[i] = keep * v[i] + part * d[i]
            d[i] = a * v[i] / (b * np.sqrt(s[i]) + epsilon)
    else:
        for i in range(last - first):
            s[i] = decay * s[i] + gain * (d[i] * d[i])
            v[i] = keep * v[i] + part * (a * d[i] / (b * np.sqrt(s[i]) + epsilon))
            d[i] = v[i]


ADAPT = Arguments(
    length=int,
    coefficients=Address,
    numbers=int,
    rounded=Address,
    correction=Address,
    room=Address,
    step=Address,
    kind=int,
    squares=Address,
    velocity=Address,
    descent=int,
    target=Address,
    terms=int,
    uses=int,
    tail="rows",
)
"""coefficients: `numbers` float64 coefficients. rounded, room, step: workspace for the coefficients as float32, for
partial sums, and for the steps of a chunk. rows: the `descent` terms of d, the `terms` terms of the assignment, and for
each of `uses` uses of the step, the index of its term in `rows`."""


@native_pass(ADAPT)
def adapt(block: Any) -> int:
    rows, number = int64_at(tail(block)), block.rounded + 4 * block.descent
    terms = tail(block) + 8 * block.descent
    round_coefficients(block.coefficients, block.numbers, block.rounded)
    for start in range(0, block.length, CHUNK):
        stop = min(start + CHUNK, block.length)
        place = block.step - 4 * start
        for use in range(block.uses):
            rows[rows[block.descent + block.terms + use]] = place
        add_up(place, tail(block), block.rounded, block.descent, block.room, start, stop, 0)
        _adapt(block.kind, block.step, block.squares, block.velocity, number, block.correction, start, stop)
        add_up(block.target, terms, number + 4 * COUNT_OF_NUMBERS, block.terms, block.room, start, stop, 0)
    return 0


@PASSES.kernel(AdaptiveStep, lambda request: request.dtype == np.float32)
def adaptive_step(request: AdaptiveStep) -> PreparedKernel:
    form, assignment = request.adaptation, request.assignment
    kind = NO_VELOCITY if form.velocity is None else OF_STEPS if form.of_steps else OF_GRADIENTS
    adapt.address  # noqa: B018 - compile while preparing

    def bind(buffers: Buffers) -> Sequence[Call]:
        vectors: dict[str, Array] = {name: buffers[name] for name in dict.fromkeys((*request.writes, *request.vectors))}
        length = check_lengths(vectors)
        check_coefficients(buffers["coefficients"], request.numbers)
        room = np.zeros((2, CHUNK), np.float32)
        names = (*form.descent, *assignment.terms)
        uses = [index for index, name in enumerate(names) if name == STEP]
        call = adapt.call(
            request.label,
            length=length,
            coefficients=buffers["coefficients"],
            numbers=request.numbers,
            rounded=np.zeros(request.numbers, np.float32),
            correction=buffers["correction"],
            room=room[0],
            step=room[1],
            kind=kind,
            squares=vectors[form.second_moment],
            velocity=None if form.velocity is None else vectors[form.velocity],
            descent=len(form.descent),
            target=vectors[assignment.target],
            terms=len(assignment.terms),
            uses=len(uses),
            rows=[*(0 if name == STEP else address(vectors[name]) for name in names), *uses],
            references=tuple(vectors.values()),
        )
        return (call,)

    return request.prepared("numba", bind)


COUNT = Arguments(count=Address, correction=Address, beta1=float, beta2=float)


@inlined
def _correct(correction: int, first: float, second: float) -> None:
    place = float64_at(correction)
    place[0], place[1] = 1 / (1 - first), 1 / np.sqrt(1 - second)


@native_pass(COUNT)
def count(block: Any) -> int:
    steps = float64_at(block.count)
    steps[0] += 1
    _correct(block.correction, block.beta1 ** steps[0], block.beta2 ** steps[0])
    return 0


@PASSES.kernel(CountStep)
def count_step(request: CountStep) -> PreparedKernel:
    return prepared_pass(
        request,
        count,
        count="step_count",
        correction="correction",
        beta1=request.beta1,
        beta2=request.beta2,
    )
