"""Linear combinations of vectors: the arithmetic of solvers and rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.interface import Assignment, Buffers, Call, PreparedKernel
from crossbow.kernels.reference.prepare import Floats
from crossbow.types import Array

CHUNK = 8192
"""Elements that all assignments pass over before the next ones: what they share stays in the cache."""


def prepare_linear_combination(assignments: Sequence[Assignment], dtype: np.dtype[np.generic]) -> PreparedKernel:
    """target ← c₀ · x₀ + c₁ · x₁ + …: rounded to `dtype` after every product and sum, added from left to right."""
    terms = tuple(dict.fromkeys(term for assignment in assignments for term in assignment.terms))
    targets = tuple(dict.fromkeys(assignment.target for assignment in assignments))

    def bind(buffers: Buffers) -> list[Call]:
        return [LinearCombination(assignments, buffers, dtype)]

    reads = (*terms, "coefficients")
    return PreparedKernel("linear_combination reference", reads, targets, bind)


class LinearCombination:
    """The bound call. Everything is sliced at binding; a call allocates nothing that grows with the vectors."""

    def __init__(self, assignments: Sequence[Assignment], buffers: Buffers, dtype: np.dtype[np.generic]) -> None:
        self.coefficients: Array = buffers["coefficients"]
        self.rounded = np.zeros(len(self.coefficients), dtype)
        names = {name for a in assignments for name in (a.target, *a.terms)}
        vectors: dict[str, Floats] = {name: buffers[name] for name in sorted(names)}
        lengths = {name: vector.shape for name, vector in vectors.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"expected vectors of one length. Received: {lengths}")
        expected = sum(len(a.terms) for a in assignments)
        if len(self.coefficients) != expected:
            raise ValueError(f"expected {expected} coefficients, one for each term. Received: {len(self.coefficients)}")
        length = len(next(iter(vectors.values())))
        self.scratch = np.zeros((2, min(length, CHUNK)), dtype)
        self.chunks: list[list[tuple[Floats, list[Floats]]]] = [
            [
                (vectors[a.target][start : start + CHUNK], [vectors[term][start : start + CHUNK] for term in a.terms])
                for a in assignments
            ]
            for start in range(0, length, CHUNK)
        ]

    def __call__(self) -> None:
        self.rounded[...] = self.coefficients
        for chunk in self.chunks:
            coefficients = iter(self.rounded)
            for target, terms in chunk:
                total, product = self.scratch[:, : len(target)]
                for index, term in enumerate(terms):
                    np.multiply(next(coefficients), term, out=product if index else total)
                    if index:
                        np.add(total, product, out=total)
                target[...] = total  # only now: the target may be one of the terms
