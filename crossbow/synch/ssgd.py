"""Synchronous SGD."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import parameters
from crossbow.solver import Pace, SolverConf, Update, solver_step
from crossbow.synch.rule import NOTHING, BarrierRule


@parameters
class SSGD(BarrierRule):
    """Synchronous SGD (update model WORKER of the original): z steps along the mean of the learners' gradients at z.

    With one learner this is plain SGD; with k learners it is SGD with a batch k times as large::

        z ← solver(z, (1/k) Σ g_i),   w_i = z

    Use it for comparison, or to follow an existing recipe.

    Fixed from the original: it works on one device, and the weight decay is not averaged with the gradients.

    See also: `SMA`, `AsynchronousSGD`, `Grouping`.
    """

    name: ClassVar[str] = "ssgd"
    sends: ClassVar[str] = "gradient"
    reads_base: ClassVar[bool] = True

    tau: int = 1

    def __post_init__(self) -> None:
        self._check_one("tau", "gradients are merged at every step")

    def local_step(self, solver: SolverConf, pace: Pace, learners: int, *, synchronises: bool) -> Update:
        return NOTHING

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        # Not in place: a merge that only some learners complete before an error must leave z unchanged.
        return solver_step(solver, pace, weights="base", gradient="mean", state="base_", into="base_next")
