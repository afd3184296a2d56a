"""An update: assignments over flat vectors, with coefficients. All arithmetic of solvers and rules has this form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.solver.schedule import Pace
from crossbow.types import Array

Terms = Mapping[str, float]
"""Coefficient of each vector, by name; the order is the order of summation."""


WHOLE_PACE = frozenset(Pace._fields)
CONSTANT: frozenset[str] = frozenset()
"""Dependencies of coefficients that never change."""


@dataclass(frozen=True)
class Assignment:
    """target ← Σ coefficient × term, element by element. The target may be one of the terms."""

    target: str
    terms: tuple[str, ...]


@dataclass(frozen=True)
class Update:
    """target ← Σ coefficient × vector, for each target in order, element by element."""

    steps: tuple[tuple[str, Terms], ...]
    signs: tuple[tuple[str, str], ...] = ()
    """(name, vector): the name is a term that stands for the sign (−1, 0, 1) of the vector before the update."""
    depends_on: frozenset[str] = WHOLE_PACE
    """Fields of `Pace` that the coefficients depend on. They are evaluated again when one of these has changed."""

    def depending_on(self, *fields: str) -> Update:
        """The update, whose coefficients depend on these fields of `Pace` too."""
        return replace(self, depends_on=self.depends_on.union(fields))

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The form of the update, for which a kernel is prepared. It must not depend on the learning rate."""
        return tuple(Assignment(target, tuple(terms)) for target, terms in self.steps)

    @property
    def coefficients(self) -> list[float]:
        """The coefficients, in the order of the terms. They may change between calls."""
        return [coefficient for _, terms in self.steps for coefficient in terms.values()]

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of all vectors that are read or written."""
        signs = dict(self.signs)
        names = [signs.get(name, name) for target, terms in self.steps for name in (target, *terms)]
        return tuple(dict.fromkeys(names))

    def expand(self, name: str, parts: Terms) -> Update:
        """The update with vector `name` replaced by the combination `parts` in all terms."""
        steps = []
        for target, terms in self.steps:
            expanded: dict[str, float] = {}
            for term, coefficient in terms.items():
                if term == name:
                    for part, weight in parts.items():
                        expanded[part] = expanded.get(part, 0.0) + coefficient * weight
                else:
                    expanded[term] = expanded.get(term, 0.0) + coefficient
            steps.append((target, expanded))
        return replace(self, steps=tuple(steps))

    def apply(self, vectors: Mapping[str, Array]) -> None:
        """Perform the update on NumPy arrays, for simulations and tests."""
        signs = {name: np.sign(vectors[vector]) for name, vector in self.signs}
        for target, terms in self.steps:
            result: NDArray[Any] = np.zeros_like(vectors[target])
            for name, coefficient in terms.items():
                result += coefficient * np.asarray(signs[name] if name in signs else vectors[name], np.float64)
            vectors[target][...] = result


def total(name: str, weights: Sequence[float]) -> dict[str, float]:
    """The combination Σ weight_i × name_i, with one name per learner's vector."""
    return {f"{name}{index}": weight for index, weight in enumerate(weights)}
