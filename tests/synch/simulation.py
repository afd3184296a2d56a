"""A rule's tick on NumPy vectors, by the rule's own updates: the contract of `crossbow.synch.Rule`, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow import SolverConf
from crossbow.solver import Pace
from crossbow.synch import BarrierRule

Vector = NDArray[Any]
GradientOf = Callable[[int, Vector], Vector]
"""The gradient of a learner at some weights."""


class Simulation:
    """k learners and their base model, all starting from the same weights."""

    def __init__(self, rule: BarrierRule, solver: SolverConf, learners: int, start: Vector) -> None:
        self.rule, self.solver, self.learners = rule, solver, learners
        self.base, self.previous = start.copy(), start.copy()
        self.base_velocity = np.zeros_like(start)
        self.weights = [start.copy() for _ in range(learners)]
        self.velocities = [np.zeros_like(start) for _ in range(learners)]
        self.ticks = 0

    def tick(self, gradient_of: GradientOf, rate: float) -> None:
        for _ in range(self.rule.tau - 1):
            for learner in range(self.learners):
                self._step(learner, gradient_of, rate, synchronises=False)
        self._synchronise(gradient_of, rate)
        self.ticks += 1

    def _pace(self, rate: float) -> Pace:
        by_merges = self.solver.learning_rate_step_unit == "merges"
        time = self.ticks if by_merges else self.ticks * self.learners * self.rule.tau
        return Pace(rate, self.solver.momentum, self.ticks, time)

    def _local(self, learner: int, gradient_of: GradientOf) -> dict[str, Vector]:
        weights = self.base if self.rule.reads_base else self.weights[learner]
        gradient = gradient_of(learner, weights.copy())
        return {"weights": weights, "gradient": gradient, "velocity": self.velocities[learner]}

    def _step(self, learner: int, gradient_of: GradientOf, rate: float, *, synchronises: bool) -> None:
        step = self.rule.local_step(self.solver, self._pace(rate), self.learners, synchronises=synchronises)
        step.apply({**self._local(learner, gradient_of), "base": self.base})

    def _synchronise(self, gradient_of: GradientOf, rate: float) -> None:
        sent = [self._local(i, gradient_of)[self.rule.sends] for i in range(self.learners)]
        vectors = {
            "base": self.base,
            "base_previous": self.previous,
            "base_velocity": self.base_velocity,
            "base_next": np.full_like(self.base, np.nan),
            "mean": sum((vector / self.learners for vector in sent), np.zeros_like(self.base)),
        }
        merge = self.rule.merge(self.solver, self._pace(rate), self.learners)
        merge.apply(vectors)
        if self.rule.reads_base:
            self.base = vectors["base_next"]
            self.weights = [self.base.copy() for _ in range(self.learners)]
            return
        for learner in range(self.learners):  # towards the old z
            self._step(learner, gradient_of, rate, synchronises=True)
        self.previous, self.base = self.base, vectors["base_next"]
