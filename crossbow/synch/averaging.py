"""Averages of the learners' new weights, with a barrier: model averaging, and Polyak-Ruppert averaging."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import parameters, setting
from crossbow.domains import Integer, Number
from crossbow.solver import Pace, SolverConf, Update, solver_step
from crossbow.solver.update import CONSTANT
from crossbow.synch.elastic import AlphaSteps, Elastic, TimedAlphas
from crossbow.synch.rule import NOTHING, BarrierRule


class Average(BarrierRule):
    """Learners step on their own; the result of the step is averaged. By default, they continue with z."""

    sends: ClassVar[str] = "new weights"

    def local_step(self, solver: SolverConf, pace: Pace, learners: int, *, synchronises: bool) -> Update:
        return solver_step(solver, pace)

    def reply(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        return Update((("weights", {"base_next": 1.0}),), depends_on=CONSTANT)


@parameters
class ModelAveraging(Average):
    """Model averaging in bulk-synchronous rounds (SpeeDO's --sync; Theano-MPI's BSP with sync_type avg)::

        τ times: w_i ← w_i + v_i;   z ← (1/k) Σ w_i;   w_i ← z

    Because all learners start from z, this equals z ← z + (1/k) Σ Δ_i, where Δ_i is the sum of a learner's τ steps.
    Each learner keeps its own velocity. With one learner it is plain SGD.

    Use it with a large `tau` to exchange rarely.

    See also: `SMA`; `DiLoCo`, which adds momentum of z; `Default`, which adds up the steps.
    """

    name: ClassVar[str] = "model-averaging"

    tau: int = setting(Integer(at_least=1), default=1)

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        return Update((("base_next", {"mean": 1.0}),), depends_on=CONSTANT)


@parameters
class PolyakRuppert(Elastic, Average):
    """Polyak-Ruppert averaging (Polyak and Juditsky, SIAM J. Control and Optimization 30, 1992; polyakruppert.c of the
    original): z is the mean of the weights over the learners and all previous ticks::

        w_i ← w_i + v_i;   m = (1/k) Σ w_i;   w_i ← w_i − α (w_i − z);   z ← z + (m − z) / (tick + 1)

    tick: the number of the tick, from 0, so that z forgets the initial weights. In a sequence of rules, it counts from
    the start of the phase: earlier values of z are not part of the mean. Values before a restart, when the learning
    rate steps down, are. With α = 0, the default, learners are independent; with α in (0, 1], z pulls them.
    alpha_steps: as for SMA.

    Use it at the end of training, with a small or constant learning rate.

    Fixed from the original: the sums of several devices add up numbers, not bytes; its clock began at 1, which kept
    the initial weights in the mean.

    See also: `ModelAveraging`.
    """

    name: ClassVar[str] = "polyak-ruppert"

    alpha: float = setting(Number(at_least=0, at_most=1), default=0.0, meaning="0, none")
    tau: int = setting(Integer(at_least=1), default=1)
    alpha_steps: AlphaSteps = setting(TimedAlphas(zero=True), default=(), meaning="none")

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        part = 1 / (pace.tick + 1)
        return Update((("base_next", {"base": 1 - part, "mean": part}),), depends_on=frozenset({"tick"}))

    def reply(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        if not (self.alpha or self.alpha_steps):
            return NOTHING
        alpha = self.strength(pace, learners)
        return Update((("weights", {"weights": 1 - alpha, "base": alpha}),), depends_on=self.strength_depends_on)
