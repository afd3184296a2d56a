"""An update: assignments over flat vectors, with coefficients. All arithmetic of solvers and rules has this form.

The assignments are linear. Only an adaptive step (`Adaptation`) is not: its result is a term of the assignments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.solver.adaptation import NUMBERS, STEP, UNCORRECTED, Adaptation, StepCount, Terms
from crossbow.solver.schedule import Pace
from crossbow.types import Array

WHOLE_PACE = frozenset(Pace._fields)
CONSTANT: frozenset[str] = frozenset()
"""Dependencies of coefficients that never change."""


@dataclass(frozen=True)
class Assignment:
    """An assignment target ← Σ coefficient × term, element by element. The target may be one of the terms."""

    target: str
    terms: tuple[str, ...]


@dataclass(frozen=True)
class Update:
    """Assignments target ← Σ coefficient × vector, for each target in order, element by element."""

    steps: tuple[tuple[str, Terms], ...]
    signs: tuple[tuple[str, str], ...] = ()
    """Pairs (name, vector): the name is a term that stands for the sign (−1, 0, 1) of the vector before the update."""
    depends_on: frozenset[str] = WHOLE_PACE
    """Fields of `Pace` that the coefficients depend on. They are evaluated again when one of these has changed."""
    adaptation: Adaptation | None = None
    """The adaptive step, computed before the assignments, of which `STEP` is a term."""

    def depending_on(self, *fields: str) -> Update:
        """The update with coefficients that also depend on these fields of `Pace`."""
        return replace(self, depends_on=self.depends_on.union(fields))

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The form of the update, for which a kernel is prepared. It must not depend on the learning rate."""
        return tuple(Assignment(target, tuple(terms)) for target, terms in self.steps)

    @property
    def coefficients(self) -> list[float]:
        """The coefficients, in the order of `terms`. They may change between calls."""
        adapting = [] if self.adaptation is None else self.adaptation.coefficients
        return [*adapting, *(coefficient for _, terms in self.steps for coefficient in terms.values())]

    @property
    def terms(self) -> tuple[str, ...]:
        """The term of each coefficient; "" for a number of the adaptation."""
        adapting = () if self.adaptation is None else (*self.adaptation.descent, *("" for _ in NUMBERS))
        return (*adapting, *(term for _, terms in self.steps for term in terms))

    @property
    def written(self) -> tuple[str, ...]:
        """Names of all vectors that are written."""
        state = () if self.adaptation is None else self.adaptation.state
        return (*state, *(target for target, _ in self.steps))

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of all vectors that are read or written."""
        signs = dict(self.signs)
        names = () if self.adaptation is None else (*self.adaptation.descent, *self.adaptation.state)
        names = (*names, *(signs.get(name, name) for target, terms in self.steps for name in (target, *terms)))
        return tuple(name for name in dict.fromkeys(names) if name != STEP)

    @property
    def count(self) -> StepCount | None:
        """The counter of steps, if the update has a bias correction."""
        return None if self.adaptation is None else self.adaptation.count

    def expand(self, name: str, parts: Terms) -> Update:
        """The update with vector `name` replaced by the combination `parts` in all terms."""
        steps = tuple((target, _expanded(terms, name, parts)) for target, terms in self.steps)
        made = replace(self, steps=steps)
        if self.adaptation is None:
            return made
        descent = _expanded(self.adaptation.descent, name, parts)
        return replace(made, adaptation=replace(self.adaptation, descent=descent))

    def apply(self, vectors: Mapping[str, Array], correction: tuple[float, float] | None = None) -> None:
        """Perform the update on NumPy arrays, for simulations and tests.

        correction: the bias correction of an adaptive step; None counts the step, and computes the correction from the
        count.
        """
        if self.signs:
            vectors = {**vectors, **{name: np.sign(vectors[vector]) for name, vector in self.signs}}
        if self.adaptation is not None:
            if correction is None:
                correction = UNCORRECTED if self.count is None else self.count.advance(vectors[self.count.name])
            vectors = {**vectors, STEP: self.adaptation.apply(vectors, correction)}
        for target, terms in self.steps:
            vectors[target][...] = _combination(terms, vectors)


def _combination(terms: Terms, vectors: Mapping[str, Array]) -> NDArray[Any] | float:
    """Σ coefficient × vector, computed in float64 from left to right."""
    result: NDArray[Any] | float = 0.0
    for number, (name, coefficient) in enumerate(terms.items()):
        vector = np.asarray(vectors[name], np.float64)
        part = vector if coefficient == 1 else coefficient * vector
        result = result + part if number else part
    return result


def _expanded(terms: Terms, name: str, parts: Terms) -> dict[str, float]:
    """A combination with vector `name` replaced by the combination `parts`."""
    expanded: dict[str, float] = {}
    for term, coefficient in terms.items():
        for part, weight in (parts if term == name else {term: 1.0}).items():
            expanded[part] = expanded.get(part, 0.0) + coefficient * weight
    return expanded


def total(name: str, weights: Sequence[float]) -> dict[str, float]:
    """The combination Σ weight_i × name_i, with one name per learner's vector."""
    return {f"{name}{index}": weight for index, weight in enumerate(weights)}
