"""The mean by mass of many simulated vectors, of which few change at a time."""

from __future__ import annotations

import numpy as np

from crossbow.synch.arguments import Vector

BLOCK = 64
"""Maximum number of terms that are added up again when one of them has changed."""


class MeanByMass:
    """Σ mass × vector, over terms whose masses add up to 1.

    A block has room for twice the initial terms, but at most for `BLOCK` terms, which are added one by one, as in the
    engine. With more terms, the sums of the blocks are added, which may change the last bits.
    """

    def __init__(self, terms: int, elements: int) -> None:
        """terms: number of initial terms, which are numbered from 0 and are all 0."""
        self._fixed, self._elements = terms, elements
        self._block = min(BLOCK, 2 * terms)
        """Number of terms of a block. It is small for few terms, which may be long vectors, to save memory."""
        # NumPy adds rows of two or more elements one by one, but the elements of a single column pairwise.
        self._terms = np.zeros((-(-terms // self._block), self._block, max(2, elements)))
        self._sums = np.zeros((len(self._terms), self._terms.shape[2]))
        """The sum of each block."""
        self._changed: set[int] = set()
        """Blocks whose sum is out of date."""
        self.clear()

    def clear(self) -> None:
        """Set the initial terms to 0, and remove the others."""
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
        """The elements of the term, for writing."""
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
