"""Adaptive steps of vectors, and the count of steps that corrects their bias."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.reference.prepare import REFERENCE, Floats, computes
from crossbow.kernels.reference.vector import CHUNK, add_up, check_coefficients, check_lengths
from crossbow.kernels.requests import AdaptiveStep, CountStep
from crossbow.solver.adaptation import NUMBERS, STEP, StepCount


@REFERENCE.kernel(AdaptiveStep)
def adaptive_step(request: AdaptiveStep) -> PreparedKernel:
    """The formula of `Adaptation`, rounded to the dtype after every operation, with sums from left to right."""

    def bind(buffers: Buffers) -> list[Call]:
        return [BoundAdaptiveStep(request, buffers)]

    return request.prepared("reference", bind)


class BoundAdaptiveStep:
    """The bound call. Its allocations do not grow with the vectors."""

    def __init__(self, request: AdaptiveStep, buffers: Buffers) -> None:
        self.form, self.assignment, dtype = request.adaptation, request.assignment, request.dtype
        self.coefficients, self.correction = buffers["coefficients"], buffers["correction"]
        check_coefficients(self.coefficients, request.numbers)
        self.rounded, self.corrected = np.zeros(request.numbers, dtype), np.zeros(2, dtype)
        vectors: dict[str, Floats] = {
            name: buffers[name] for name in dict.fromkeys((*request.writes, *request.vectors))
        }
        length = check_lengths(vectors)
        self.scratch = np.zeros((4, min(length, CHUNK)), dtype)
        self.chunks = [
            {name: vector[start : start + CHUNK] for name, vector in vectors.items()}
            for start in range(0, length, CHUNK)
        ]

    def __call__(self) -> None:
        self.rounded[...], self.corrected[...] = self.coefficients, self.correction
        for chunk in self.chunks:
            self._step(chunk)

    def _step(self, chunk: dict[str, Floats]) -> None:
        form, count = self.form, len(self.form.descent)
        squares, target = chunk[form.second_moment], chunk[self.assignment.target]
        room = self.scratch[:, : len(target)]
        step, spare = room[2:]
        decay, gain, epsilon, keep, part = self.rounded[count : count + len(NUMBERS)]
        descent = add_up([chunk[term] for term in form.descent], iter(self.rounded[:count]), room[:2])
        np.multiply(descent, descent, out=step)
        _move(squares, decay, gain, step, spare)
        velocity = None if form.velocity is None else chunk[form.velocity]
        if velocity is not None and not form.of_steps:
            _move(velocity, keep, part, descent, spare)
            descent = velocity
        np.sqrt(squares, out=spare)
        np.multiply(self.corrected[1], spare, out=spare)
        np.add(spare, epsilon, out=spare)
        np.multiply(self.corrected[0], descent, out=step)
        np.divide(step, spare, out=step)
        if velocity is not None and form.of_steps:
            _move(velocity, keep, part, step, spare)
            step = velocity
        terms = [step if term == STEP else chunk[term] for term in self.assignment.terms]
        target[...] = add_up(terms, iter(self.rounded[count + len(NUMBERS) :]), room[:2])


def _move(vector: Floats, keep: np.generic, part: np.generic, other: Floats, spare: Floats) -> None:
    """vector ← keep · vector + part · other."""
    np.multiply(part, other, out=spare)
    np.multiply(keep, vector, out=vector)
    np.add(vector, spare, out=vector)


@computes(CountStep)
def count_step(*, step_count: NDArray[np.float64], correction: NDArray[np.float64], beta1: float, beta2: float) -> None:
    """Count a step, and compute the bias correction by the count."""
    correction[...] = StepCount("", beta1, beta2).advance(step_count)
