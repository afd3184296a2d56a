"""Averages of the learners' new weights, behind a barrier: model averaging, and Polyak-Ruppert averaging."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import SolverConf, parameters
from crossbow.solver import Pace, Update, solver_step
from crossbow.synch.elastic import AlphaSteps, Elastic
from crossbow.synch.rule import NOTHING, BarrierRule


class _Average(BarrierRule):
    """Learners step alone; their mean is made of what comes of it."""

    sends: ClassVar[str] = "new weights"

    def local_step(self, solver: SolverConf, pace: Pace, learners: int, *, synchronises: bool) -> Update:
        return solver_step(solver, pace)


@parameters
class ModelAveraging(_Average):
    """Model averaging in bulk-synchronous rounds (SpeeDO's --sync; Theano-MPI's BSP with sync_type avg)::

        τ times: w_i ← w_i + v_i;   z ← (1/k) Σ w_i;   w_i ← z

    As everybody starts from z, this is z ← z + (1/k) Σ Δ_i too, with what the learners' τ steps have moved them by. The
    velocities stay the learners' own. With one learner it is plain SGD.
    """

    name: ClassVar[str] = "model-averaging"

    tau: int = 1

    def __post_init__(self) -> None:
        self._check_integer("tau", 1)

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        return Update((("base_next", {"mean": 1.0}),))

    def reply(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        return Update((("weights", {"base_next": 1.0}),))


@parameters
class PolyakRuppert(Elastic, _Average):
    """Polyak-Ruppert averaging (Polyak and Juditsky, SIAM J. Control and Optimization 30, 1992; polyakruppert.c of the
    original): z is the mean, over the learners and all ticks so far, of where they have been::

        w_i ← w_i + v_i;   m = (1/k) Σ w_i;   w_i ← w_i − α (w_i − z);   z ← z + (m − z) / (clock + 1)

    clock: the number of the tick, from 0, so that z forgets the initial weights. In a sequence of rules it is that in
    the phase: what z was before the phase is not part of the mean. What it was before a restart, where the learning
    rate steps down, is. α = 0, the default: the learners know nothing of each other; above, in (0, 1], z draws them.
    alpha_steps: as for SMA.

    Fixed from the original: several devices' sums are sums of numbers, not of bytes; its clock began at 1, which kept
    the initial weights in the mean.
    """

    name: ClassVar[str] = "polyak-ruppert"

    alpha: float = 0.0
    tau: int = 1
    alpha_steps: AlphaSteps = ()

    def __post_init__(self) -> None:
        self._check_alpha(zero=True)
        self._check_integer("tau", 1)

    def at(self, pace: Pace, tick: int, time: float) -> Pace:
        return super().at(pace, tick, time)._replace(clock=tick)

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        part = 1 / (pace.clock + 1)
        return Update((("base_next", {"base": 1 - part, "mean": part}),))

    def reply(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        if not (self.alpha or self.alpha_steps):
            return NOTHING
        alpha = self.strength(pace, learners)
        return Update((("weights", {"weights": 1 - alpha, "base": alpha}),))
