"""Schedules: learning rate and momentum as pure functions of the task number."""

from __future__ import annotations

import bisect
import math
from typing import NamedTuple

from crossbow.solver.configuration import DECAYING_POLICIES, SolverConf


class Pace(NamedTuple):
    """The values that updates may depend on during training: the solver's learning rate and momentum, and the progress
    of training."""

    rate: float
    momentum: float
    tick: int = 0
    """Number of the tick, from 0; in a rule sequence, from the start of the phase."""
    time: float = 0.0
    """Tasks, epochs or merges since the start, by `learning_rate_step_unit`."""

    def times(self, multiplier: float) -> Pace:
        """The pace of variables with a learning rate multiplier."""
        return self._replace(rate=self.rate * multiplier)


class Schedule:
    """The pace (γ, momentum) of a solver configuration as a function of the number of the round's first task or, if the
    schedule counts merges, of the number of previous merges."""

    def __init__(self, solver: SolverConf, tasks_per_epoch: float, *, restart: bool = True) -> None:
        """tasks_per_epoch: batches in an epoch, a fraction if the batch size does not divide the number of examples.
        restart: whether learners restart when the learning rate steps down."""
        self.solver, self._restart = solver, restart
        self._unit = tasks_per_epoch if solver.learning_rate_step_unit == "epochs" else 1.0

    def __call__(self, task: int, tick: int = 0) -> Pace:
        """The pace at task number `task`, counted from 0 over all learners. tick: see `Pace`."""
        time = self.time(task)
        if self.solver.policy == "clr":
            rate, momentum = self._cycle(time)
        else:
            rate, momentum = self._rate(task, time), self.solver.momentum
        return Pace(rate, momentum, tick, time)

    def _rate(self, task: int, time: float) -> float:
        solver = self.solver
        if solver.policy == "inv":
            rate = solver.learning_rate * math.pow(1 + solver.gamma * time, -solver.power)
        elif solver.policy == "exp":
            rate = solver.learning_rate * math.pow(solver.gamma, time)
        elif solver.policy in DECAYING_POLICIES:
            rate = self._decay(time)
        else:
            rate = solver.learning_rate * solver.gamma ** self._drops(time)
        if time < solver.warmup_steps:
            rate *= min(1.0, (task + 1) / (solver.warmup_steps * self._unit))
        return rate

    def _decay(self, time: float) -> float:
        """The learning rate between the first and the last one, on a line or half a cosine."""
        solver = self.solver
        done = min(1.0, time / solver.decay_steps)
        if solver.policy == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return _between(solver.learning_rate, solver.last_learning_rate, done)

    def _cycle(self, time: float) -> tuple[float, float]:
        """Learning rate and momentum of the triangular cycle, or of the final phase of super-convergence."""
        solver, half = self.solver, self.solver.step_size
        assert solver.maximum_learning_rate is not None
        if solver.super_convergence and time >= 2 * half:
            done = min(1.0, (time - 2 * half) / solver.annihilation_steps)
            return _between(solver.learning_rate, solver.last_learning_rate, done), solver.momentum
        position = time % (2 * half)
        height = min(position, 2 * half - position) / half
        rate = _between(solver.learning_rate, solver.maximum_learning_rate, height)
        if solver.minimum_momentum is None:
            return rate, solver.momentum
        return rate, _between(solver.momentum, solver.minimum_momentum, height)

    def time(self, task: int) -> float:
        """Tasks, epochs or merges since the start, by `learning_rate_step_unit`.

        The result is rounded, so that 35 tasks with 7/3 tasks per epoch are 15 epochs, not slightly less.
        """
        return round(task / self._unit, 9)

    def restarts(self, task: int) -> int:
        """Number of restarts from z until task number `task`."""
        return self._drops(self.time(task)) if self._restart else 0

    def _drops(self, time: float) -> int:
        """Number of steps down until that time; 0 if the policy has no steps."""
        solver = self.solver
        if solver.policy == "step":
            return int(time // solver.step_size)
        if solver.policy == "lsr" and time < solver.warmup_steps:
            return 0
        return bisect.bisect_right(solver.step_values, time)


def time_of_zero_rate(solver: SolverConf) -> int | None:
    """The time, in `learning_rate_step_unit`, from which on the learning rate is 0; None if it never is."""
    if solver.last_learning_rate:
        return None
    if solver.policy in DECAYING_POLICIES:
        return solver.decay_steps
    return 2 * solver.step_size + solver.annihilation_steps if solver.super_convergence else None


def _between(first: float, last: float, part: float) -> float:
    """Linear interpolation from `first` to `last`, exact at both ends."""
    return (1 - part) * first + part * last
