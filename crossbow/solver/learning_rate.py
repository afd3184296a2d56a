"""Learning-rate policies: pure functions of the task number."""

from __future__ import annotations

import bisect
import math

from crossbow.conf import SolverConf


class LearningRate:
    """γ(t) of a solver configuration, for the round whose first task is number t."""

    def __init__(self, solver: SolverConf, tasks_per_epoch: float) -> None:
        """tasks_per_epoch: batches in an epoch, a fraction where the batch size does not divide the examples."""
        self.solver = solver
        self._unit = tasks_per_epoch if solver.learning_rate_step_unit == "epochs" else 1.0

    def __call__(self, task: int) -> float:
        """The learning rate at task number `task`, counted from 0 over all learners."""
        solver = self.solver
        time = self._time(task)
        if solver.policy == "inv":
            rate = solver.learning_rate * math.pow(1 + solver.gamma * time, -solver.power)
        elif solver.policy == "exp":
            rate = solver.learning_rate * math.pow(solver.gamma, time)
        else:
            rate = solver.learning_rate * solver.gamma ** self.drops(task)
        if time < solver.warmup_steps:
            rate *= min(1.0, (task + 1) / (solver.warmup_steps * self._unit))
        return rate

    def _time(self, task: int) -> float:
        """Tasks or epochs since the start. Rounded: 35 tasks of 7/3 an epoch are 15 epochs, not a little less."""
        return round(task / self._unit, 9)

    def drops(self, task: int) -> int:
        """How many steps down a stepwise policy has taken at task number `task`: a rule may restart at each."""
        solver, time = self.solver, self._time(task)
        if solver.policy == "step":
            return int(time // solver.step_size)
        if solver.policy == "multistep":
            return bisect.bisect_right(solver.step_values, time)
        return 0
