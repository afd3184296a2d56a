"""The mean by mass of many simulated vectors, of which few change at a time."""

from __future__ import annotations

import numpy as np

from crossbow.synch.arguments import Vector

BLOCK = 64
"""Number of terms, at most, that are added up again when one of them has changed."""


class MeanByMass:
    """Σ mass × vector, over terms whose masses are 1 together.

    The first terms, up to `BLOCK`, and as many more are one block, whose terms are added one by one, as in the engine.
    Sums of blocks are added if there are more terms, which may change the last bits.
    """

    def __init__(self, terms: int, elements: int) -> None:
        """terms: how many there are at first, numbered from 0, each 0."""
        self._fixed, self._elements = terms, elements
        self._block = min(BLOCK, 2 * terms)
        """Number of terms of a block: less memory for few terms, which may be large."""
        # NumPy adds rows of two elements or more one by one, but a column by halves.
        self._terms = np.zeros((-(-terms // self._block), self._block, max(2, elements)))
        self._sums = np.zeros((len(self._terms), self._terms.shape[2]))
        """Of each block."""
        self._changed: set[int] = set()
        """Blocks whose sum is out of date."""
        self.clear()

    def clear(self) -> None:
        """Set the first terms to 0, and remove the others."""
        self._terms[...] = 0
        self._changed.update(range(len(self._terms)))
        self._free = list(range(len(self._terms) * self._block - 1, self._fixed - 1, -1))

    def add(self, mass: float, vector: Vector) -> int:
        """Add a term. Returns its number."""
        if not self._free:
            blocks = len(self._terms)
            self._terms = np.concatenate([self._terms, np.zeros_like(self._terms[:1])])
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums[:1])])
            self._free = list(range((blocks + 1) * self._block - 1, blocks * self._block - 1, -1))
        term = self._free.pop()
        self.set(term, mass, vector)
        return term

    def remove(self, term: int) -> None:
        """Remove a term that was added."""
        self.reset(term)
        self._free.append(term)

    def reset(self, term: int) -> None:
        """Set the term to 0."""
        self._of(term)[...] = 0

    def set(self, term: int, mass: float, vector: Vector) -> None:
        """Set the term to mass × vector."""
        self._of(term)[...] = mass * vector

    def _of(self, term: int) -> Vector:
        """The elements of the term, to be changed."""
        block, place = divmod(term, self._block)
        self._changed.add(block)
        return self._terms[block, place, : self._elements]

    def value(self) -> Vector:
        """The sum of all terms."""
        for block in self._changed:
            np.add.reduce(self._terms[block], out=self._sums[block])
        self._changed.clear()
        total: Vector = np.add.reduce(self._sums)[: self._elements]
        return total
