"""The numbers of solvers' and rules' updates, rewritten when the schedule moves on: kernels read them at every call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crossbow.solver import Pace, SolverConf, Update
from crossbow.synch import BarrierRule
from crossbow.synch.rule import NOTHING
from crossbow.types import Array

ANY = Pace(rate=1.0, momentum=0.5)
"""The vectors of an update do not depend on the pace."""
OTHER = Pace(rate=0.5, momentum=0.25, clock=1, alpha=math.nan)
"""Whatever depends on α differs from anything here, as NaN does."""


@dataclass(frozen=True)
class PacedUpdate:
    """An update whose numbers depend on the pace."""

    at: Callable[[Pace], Update]
    numbers: Mapping[float, Array]
    """For each multiplier of the learning rate the numbers, in an array that kernels read. Only one where the rate does
    not matter."""
    alone: PacedUpdate | None = None
    """What takes its place for variables that every learner keeps to itself, where there are such."""

    @property
    def update(self) -> Update:
        """With some numbers."""
        return self.at(ANY)

    @property
    def changes(self) -> bool:
        """Whether the numbers depend on the pace at all."""
        own = self.at(ANY).coefficients != self.at(OTHER).coefficients
        return own or (self.alone is not None and self.alone.changes)

    def set(self, pace: Pace) -> None:
        for multiplier, numbers in self.numbers.items():
            numbers[:] = self.at(pace.times(multiplier)).coefficients
        if self.alone is not None:
            self.alone.set(pace)


def paced_update(at: Callable[[Pace], Update], multipliers: Sequence[float]) -> PacedUpdate:
    """The update, with arrays for its numbers."""
    some = at(ANY).coefficients
    if some == at(ANY.times(0.5)).coefficients:
        multipliers = (1.0,)
    return PacedUpdate(at, {multiplier: np.array(some, np.float64) for multiplier in multipliers})


@dataclass
class Coefficients:
    """The updates of a learner, or of the synchroniser between devices."""

    rule: BarrierRule
    solver: SolverConf
    learners: int
    multipliers: Sequence[float] = (1.0,)
    """Of the learning rate, that variables have."""
    expand: dict[str, float] = field(default_factory=dict)
    """What `mean` stands for in the merge of a single device."""
    keeps: bool = False
    """Whether there are variables that every learner keeps to itself."""
    pace: Pace | None = None

    def __post_init__(self) -> None:
        rule, solver, learners = self.rule, self.solver, self.learners

        def merge(pace: Pace) -> Update:
            update = rule.merge(solver, pace, learners)
            return update.expand("mean", self.expand) if self.expand else update

        def step(pace: Pace) -> Update:
            return rule.local_step(solver, pace, learners, synchronises=True)

        def local(pace: Pace) -> Update:
            return rule.local_step(solver, pace, learners, synchronises=False)

        def reply(pace: Pace) -> Update:
            return rule.reply(solver, pace, learners)

        self.step = paced_update(step, self.multipliers)
        """The synchronising step."""
        self.local = paced_update(local, self.multipliers)
        """A step that does not synchronise."""
        self.merge = paced_update(merge, self.multipliers)
        self.reply = paced_update(reply, self.multipliers)
        """What the learner does behind the merge."""
        if self.keeps:
            mean = Update((("base_next", {"mean": 1.0}),))
            mean = mean.expand("mean", self.expand) if self.expand else mean
            self.step = replace(self.step, alone=self.local)
            self.merge = replace(self.merge, alone=paced_update(lambda pace: mean, self.multipliers))
            self.reply = replace(self.reply, alone=paced_update(lambda pace: NOTHING, self.multipliers))
        everything = (self.step, self.local, self.merge, self.reply)
        self._changing = [update for update in everything if update.changes]

    def set(self, pace: Pace) -> None:
        if pace != self.pace:
            for update in self._changing:
                update.set(pace)
            self.pace = pace
