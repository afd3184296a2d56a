"""Coefficients of updates as functions of the pace.

A `Formula` is an update as a function of the pace. Its coefficients lie in arrays that kernels read, one array for each
multiplier of the learning rate; `Formula.over` maps them to a vector, and `Formula.evaluate` computes the vector's
values. The scheduler evaluates a run's `Formulas` once a tick, and only if a field of the pace that they depend on has
changed (`Update.depends_on`). Every learner copies the result into its own vector before the first task that needs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from crossbow.solver import Pace, SolverConf, Update
from crossbow.solver.update import CONSTANT
from crossbow.synch import BarrierRule
from crossbow.synch.rule import MEAN, NOTHING
from crossbow.types import Array

ANY = Pace(rate=1.0, momentum=0.5)
"""The pace used to obtain an update's form, which does not depend on the pace."""

About = TypeVar("About")
"""Type of the second argument of a formula, after the pace: an arrival, or the masses of two learners; None in a
tick."""


@dataclass(frozen=True)
class BoundUpdate:
    """An update whose coefficients are in arrays that kernels read."""

    update: Update
    """The update's form, with its coefficients at an arbitrary pace."""
    numbers: Mapping[float, Array]
    """Coefficients for each multiplier of the learning rate; a single entry if they do not depend on the rate."""
    alone: BoundUpdate | None = None
    """The update of the learners' local variables, if there are any."""
    correction: Array | None = None
    """The bias correction of an adaptive step, which `VectorArithmetic.count` adds; None for a linear update."""


class Formula(Generic[About]):
    """An update as a function of the pace, for variables with these multipliers of the learning rate."""

    def __init__(
        self,
        at: Callable[[Pace, About], Update],
        some: About,
        multipliers: Sequence[float] = (1.0,),
        alone: Formula[About] | None = None,
    ) -> None:
        """some: an example of the second argument of `at`. alone: see `BoundUpdate`."""
        self._at, self.alone = at, alone
        self.form = at(ANY, some)
        self.multipliers = tuple(multipliers) if "rate" in self.form.depends_on else (1.0,)
        self.depends_on: frozenset[str] = self.form.depends_on | (CONSTANT if alone is None else alone.depends_on)
        self._fields = sorted(self.depends_on)
        own = len(self.form.coefficients) * len(self.multipliers)
        self.length: int = own + (0 if alone is None else alone.length)

    def key(self, pace: Pace) -> tuple[float, ...]:
        """The fields of a pace that the coefficients depend on."""
        return tuple(getattr(pace, field) for field in self._fields)

    def evaluate(self, pace: Pace, about: About) -> list[float]:
        """All coefficients, in the order of `over`."""
        numbers: list[float] = []
        for multiplier in self.multipliers:
            numbers += self._at(pace.times(multiplier), about).coefficients
        return numbers if self.alone is None else numbers + self.alone.evaluate(pace, about)

    def over(self, numbers: Array) -> BoundUpdate:
        """The update, with its coefficients in a vector of `length` elements."""
        length = len(self.form.coefficients)
        pieces = {m: numbers[i * length : (i + 1) * length] for i, m in enumerate(self.multipliers)}
        rest = numbers[length * len(self.multipliers) :]
        return BoundUpdate(self.form, pieces, None if self.alone is None else self.alone.over(rest))


class Formulas:
    """The updates of a learner, or of a synchroniser, by name: their coefficients are one vector."""

    def __init__(self, formulas: Mapping[str, Formula[None]]) -> None:
        self._formulas = dict(formulas)
        self.length = sum(formula.length for formula in self._formulas.values())
        self._fields = sorted(frozenset[str]().union(*(each.depends_on for each in self._formulas.values())))
        self._key: Callable[[Pace], Any] = attrgetter(*self._fields) if self._fields else lambda pace: ()
        self._seen = self._key(ANY)
        self._latest = self._evaluate(ANY)

    def at(self, pace: Pace) -> Array:
        """Coefficients at this pace. Returns the same array as long as the values are the same."""
        key = self._key(pace)
        if key != self._seen:
            numbers = self._evaluate(pace)
            if not np.array_equal(numbers, self._latest):
                self._latest = numbers
            self._seen = key
        return self._latest

    def over(self, numbers: Array) -> dict[str, BoundUpdate]:
        """The updates, with their coefficients in a vector of `length` elements."""
        ends = list(itertools.accumulate((each.length for each in self._formulas.values()), initial=0))
        pieces = [numbers[start:end] for start, end in itertools.pairwise(ends)]
        return {name: each.over(piece) for (name, each), piece in zip(self._formulas.items(), pieces, strict=True)}

    def _evaluate(self, pace: Pace) -> Array:
        numbers = np.array([n for each in self._formulas.values() for n in each.evaluate(pace, None)], np.float64)
        numbers.setflags(write=False)
        return numbers


def tick_formulas(
    rule: BarrierRule,
    solver: SolverConf,
    learners: int,
    multipliers: Sequence[float] = (1.0,),
    mean: Mapping[str, float] | None = None,
    *,
    keeps: bool = False,
    mean_first: bool = False,
) -> Formulas:
    """The updates of a tick: "local", a step that does not synchronise; "step", a step that does; "merge", which
    computes the next z; and "reply", a learner's update after the merge.

    mean: the terms that replace `mean` in the merge on a single device. mean_first: whether they are added up in the
    vector `mean` instead, before the merge. keeps: whether learners have local variables.
    """

    def expanded(update: Update) -> Update:
        return update.expand("mean", mean) if mean else update

    def merged(update: Update) -> Update:
        return replace(update, steps=(("mean", mean), *update.steps)) if mean and mean_first else expanded(update)

    def formula(at: Callable[[Pace, None], Update], alone: Formula[None] | None) -> Formula[None]:
        return Formula(at, None, multipliers, alone if keeps else None)

    base_mean = expanded(MEAN)
    local = Formula(lambda pace, _: rule.local_step(solver, pace, learners, synchronises=False), None, multipliers)
    step = formula(lambda pace, _: rule.local_step(solver, pace, learners, synchronises=True), local)
    merge = formula(
        lambda pace, _: merged(rule.merge(solver, pace, learners)), Formula(lambda pace, _: base_mean, None)
    )
    reply = formula(lambda pace, _: rule.reply(solver, pace, learners), Formula(lambda pace, _: NOTHING, None))
    return Formulas({"local": local, "step": step, "merge": merge, "reply": reply})
