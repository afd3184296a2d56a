"""Linear combinations of vectors, and their norm: the arithmetic of solvers and rules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.reference.prepare import REFERENCE, Floats, computes
from crossbow.kernels.requests import ClipCoefficients, LinearCombination, SquaredNorm
from crossbow.solver.update import Assignment
from crossbow.types import Array

CHUNK = 8192
"""Number of elements that all assignments process before the next ones, so that shared terms stay in the cache."""


@REFERENCE.kernel(LinearCombination)
def linear_combination(request: LinearCombination) -> PreparedKernel:
    """target ← c₀ · x₀ + c₁ · x₁ + …: rounded to the dtype after every product and sum, added from left to right."""

    def bind(buffers: Buffers) -> list[Call]:
        return [BoundCombination(request.assignments, buffers, request.dtype, dict(request.signs))]

    return request.prepared("reference", bind)


class BoundCombination:
    """The bound call. All slices are made at binding, and the allocations of a call do not grow with the vectors."""

    def __init__(
        self,
        assignments: Sequence[Assignment],
        buffers: Buffers,
        dtype: np.dtype[np.generic],
        signs: Mapping[str, str] | None = None,
    ) -> None:
        signs = signs or {}
        self.coefficients: Array = buffers["coefficients"]
        self.rounded = np.zeros(len(self.coefficients), dtype)
        names = {name for a in assignments for name in (a.target, *a.terms)}
        vectors: dict[str, Floats] = {name: buffers[name] for name in sorted({signs.get(name, name) for name in names})}
        length = check_lengths(vectors)
        check_coefficients(self.coefficients, sum(len(a.terms) for a in assignments))
        self.scratch = np.zeros((2, min(length, CHUNK)), dtype)
        sign = {name: np.zeros(min(length, CHUNK), dtype) for name in sorted(names & signs.keys())}
        self.chunks: list[_Chunk] = []
        for start in range(0, length, CHUNK):
            part = {name: vector[start : start + CHUNK] for name, vector in vectors.items()}
            size = len(next(iter(part.values())))
            signed = [(part[signs[name]], room[:size]) for name, room in sign.items()]
            part.update({name: room[:size] for name, room in sign.items()})
            sums = [(part[a.target], [part[term] for term in a.terms]) for a in assignments]
            self.chunks.append(_Chunk(signed, sums))

    def __call__(self) -> None:
        self.rounded[...] = self.coefficients
        for chunk in self.chunks:
            for vector, sign in chunk.signs:
                np.sign(vector, out=sign)
            coefficients = iter(self.rounded)
            for target, terms in chunk.sums:
                # Not directly to the target, which may be one of the terms.
                target[...] = add_up(terms, coefficients, self.scratch[:, : len(target)])


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A range of all vectors that fits into the cache."""

    signs: list[tuple[Floats, Floats]]
    """Vectors, and memory for their signs."""
    sums: list[tuple[Floats, list[Floats]]]
    """Targets and terms."""


def check_lengths(vectors: Mapping[str, Array]) -> int:
    """The common length of the vectors. Raises ValueError if they differ."""
    lengths = {name: vector.shape for name, vector in vectors.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"expected vectors of one length. Received: {lengths}")
    return len(next(iter(vectors.values())))


def check_coefficients(coefficients: Array, expected: int) -> None:
    """Raises ValueError unless there are as many coefficients as expected, of type float64."""
    if coefficients.dtype != np.float64 or coefficients.shape != (expected,):
        raise ValueError(
            f"expected {expected} float64 coefficients, one for each term. "
            f"Received: {coefficients.dtype} of shape {coefficients.shape}"
        )


def add_up(terms: Sequence[Floats], coefficients: Iterator[np.generic], scratch: Floats) -> Floats:
    """c₀ · x₀ + c₁ · x₁ + …, in the first row of `scratch`."""
    total: Floats = scratch[0]
    product: Floats = scratch[1]
    for index, term in enumerate(terms):
        np.multiply(next(coefficients), term, out=product if index else total)
        if index:
            np.add(total, product, out=total)
    return total


@REFERENCE.kernel(SquaredNorm)
def squared_norm(request: SquaredNorm) -> PreparedKernel:
    """square ← ‖c₀ · x₀ + c₁ · x₁ + …‖²: the sum as in a linear combination, its squares in double precision."""

    def bind(buffers: Buffers) -> list[Call]:
        terms = [buffers[term] for term in request.terms]
        return [BoundNorm(terms, buffers["coefficients"], buffers["square"], request.dtype)]

    return request.prepared("reference", bind)


class BoundNorm:
    """The bound call. The sum is never stored as a whole."""

    def __init__(self, terms: Sequence[Array], coefficients: Array, square: Array, dtype: np.dtype[np.generic]) -> None:
        length = check_lengths({f"term {index}": term for index, term in enumerate(terms)})
        self.coefficients, self.rounded, self.square = coefficients, np.zeros(len(terms), dtype), square
        self.scratch, self.wide = np.zeros((2, min(length, CHUNK)), dtype), np.zeros(min(length, CHUNK))
        self.chunks = [[term[start : start + CHUNK] for term in terms] for start in range(0, length, CHUNK)]

    def __call__(self) -> None:
        self.rounded[...] = self.coefficients
        square = 0.0
        for terms in self.chunks:
            wide = self.wide[: len(terms[0])]
            wide[...] = add_up(terms, iter(self.rounded), self.scratch[:, : len(wide)])
            square += float(np.square(wide, out=wide).sum())
        self.square[0] = square


@computes(ClipCoefficients)
def clip_coefficients(
    *,
    squares: NDArray[np.float64],
    coefficients: NDArray[np.float64],
    clipped_coefficients: NDArray[np.float64],
    limit: float,
    clipped: Sequence[bool],
) -> None:
    """clipped_coefficients ← marked coefficients multiplied by min(1, limit / √Σ squares), and the others unchanged."""
    norm = math.sqrt(squares.sum())
    factor = 1.0 if norm <= limit else limit / norm  # propagates NaN
    clipped_coefficients[...] = coefficients
    clipped_coefficients[np.array(clipped, bool)] *= factor
