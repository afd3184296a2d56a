"""Requests for the arithmetic of solvers and rules on vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossbow.kernels.requests.request import Request, Roles
from crossbow.solver.adaptation import NUMBERS, STEP, AdaptationForm
from crossbow.solver.update import Assignment


@dataclass(frozen=True)
class LinearCombination(Request):
    """Assignments to 1-D vectors of one length, in order, in one pass over memory.

    `coefficients` is a float64 array with one element per term, in order, which every call reads. A target may be a
    term, and may be a term of later assignments, which then use the new value. signs: (name, vector); the name is a
    term that stands for the signs (−1, 0 or 1) of that vector's elements before the call.
    """

    assignments: tuple[Assignment, ...]
    dtype: np.dtype[np.generic]
    signs: tuple[tuple[str, str], ...] = ()

    @property
    def vectors(self) -> Roles:
        """The vectors that are terms, or whose signs are terms."""
        sources = dict(self.signs)
        return tuple(dict.fromkeys(sources.get(term, term) for each in self.assignments for term in each.terms))

    @property
    def reads(self) -> Roles:
        return (*self.vectors, "coefficients")

    @property
    def writes(self) -> Roles:
        return tuple(dict.fromkeys(each.target for each in self.assignments))


@dataclass(frozen=True)
class AdaptiveStep(Request):
    """An adaptive step of 1-D vectors of one length, and an assignment with the result as its term `STEP`, in one pass
    over memory.

    `coefficients` is a float64 array that every call reads: a coefficient for each term of d, `NUMBERS`, and a
    coefficient for each term of the assignment. `correction` is the bias correction (a, b), float64. `Adaptation` has
    the formula.
    """

    adaptation: AdaptationForm
    assignment: Assignment
    dtype: np.dtype[np.generic]

    @property
    def state(self) -> Roles:
        """The vectors of the adaptation that are written."""
        form = self.adaptation
        return (form.second_moment,) if form.velocity is None else (form.second_moment, form.velocity)

    @property
    def vectors(self) -> Roles:
        """The vectors that are read."""
        terms = (*self.adaptation.descent, *self.state, *self.assignment.terms)
        return tuple(term for term in dict.fromkeys(terms) if term != STEP)

    @property
    def numbers(self) -> int:
        """Number of coefficients."""
        return len(self.adaptation.descent) + len(NUMBERS) + len(self.assignment.terms)

    @property
    def reads(self) -> Roles:
        return (*self.vectors, "coefficients", "correction")

    @property
    def writes(self) -> Roles:
        return tuple(dict.fromkeys((*self.state, self.assignment.target)))


@dataclass(frozen=True)
class CountStep(Request):
    """step_count ← step_count + 1, correction ← (1 / (1 − beta1^step_count), 1 / √(1 − beta2^step_count)), all
    float64."""

    beta1: float
    beta2: float

    reads, writes = ("step_count",), ("step_count", "correction")


@dataclass(frozen=True)
class SquaredNorm(Request):
    """square (float64, (1,)) = ‖Σ coefficient × term‖². The squares are added up in double precision, always in the
    same order. The terms are 1-D vectors of one length; `coefficients` has one float64 per term."""

    terms: tuple[str, ...]
    dtype: np.dtype[np.generic]

    writes = ("square",)

    @property
    def reads(self) -> Roles:
        return (*dict.fromkeys(self.terms), "coefficients")


@dataclass(frozen=True)
class ClipCoefficients(Request):
    """clipped_coefficients = coefficients, where marked ones are multiplied by min(1, limit / √Σ squares). All are
    float64 and 1-D."""

    limit: float
    clipped: tuple[bool, ...]

    reads, writes = ("squares", "coefficients"), ("clipped_coefficients",)
