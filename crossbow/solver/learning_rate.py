"""Learning-rate policies: pure functions of the task number."""

from __future__ import annotations

import bisect

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
        time = task / self._unit
        if solver.policy == "inv":
            rate = solver.learning_rate * (1 + solver.gamma * time) ** -solver.power
        elif solver.policy == "exp":
            rate = solver.learning_rate * solver.gamma**time
        else:
            rate = solver.learning_rate * solver.gamma ** self.drops(task)
        if time < solver.warmup_steps:
            rate *= (task + 1) / (solver.warmup_steps * self._unit)
        return rate

    def drops(self, task: int) -> int:
        """How many steps down a stepwise policy has taken at task number `task`: a rule may restart at each."""
        solver = self.solver
        time = task / self._unit
        if solver.policy == "step":
            return int(time // solver.step_size)
        if solver.policy == "multistep":
            return bisect.bisect_right(solver.step_values, time)
        return 0
