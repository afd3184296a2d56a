"""Elastic averaging with a barrier: Crossbow's synchronous model averaging, and synchronous EASGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crossbow.conf import SolverConf, is_number
from crossbow.solver import Pace, Update, solver_step
from crossbow.synch.rule import BarrierRule

ROUNDING = 1e-12
"""A coefficient this small is the rounding error of one that is zero."""


class _Elastic(BarrierRule):
    """Replicas and z are drawn to each other."""

    sends: ClassVar[str] = "weights"
    alpha: float | None

    def _check_alpha(self) -> None:
        self._check_strength("alpha", default="1/k")

    def weight(self, learners: int) -> float:
        return 1 / max(learners, 2) if self.alpha is None else self.alpha

    def check_learners(self, learners: int) -> None:
        if self.alpha is not None and self.alpha * (learners + 1) >= 2:
            limit = (
                f"< 2/(k + 1) = {2 / (learners + 1):.4g} with k = {learners} learners, or z and replicas swing apart"
            )
            raise self.refuse("alpha", self.alpha, limit)

    def local_step(self, solver: SolverConf, pace: Pace, learners: int, *, synchronises: bool) -> Update:
        return solver_step(solver, pace, pull=self.weight(learners) if synchronises else 0.0)

    def _merge(self, learners: int, base_momentum: float) -> Update:
        # z + Σ α (w_i − z) + μ (z − z_prev), with total = Σ α w_i
        kept = 1 - learners * self.weight(learners) + base_momentum
        # With α = 1/k and μ = 0 nothing of z is kept: then it is not read either.
        terms = {"base": kept} if abs(kept) > ROUNDING else {}
        terms["total"] = 1.0
        if base_momentum:
            terms["base_previous"] = -base_momentum
        return Update((("base_next", terms),))


@dataclass(frozen=True)
class SMA(_Elastic):
    """Synchronous model averaging (Koliousis et al., VLDB 2019, Algorithm 1; sma.c and sma.cu of the original).

    With w_i before the last of the τ local steps and v_i the solver's step::

        c_i = α (w_i − z)
        w_i ← w_i + v_i − c_i
        z   ← z + Σ c_i + μ (z − z_prev)

    α: strength of the correction, in (0, 1]; None is 1/k with k learners, with which z is the mean of the replicas
    before their step (1/2 with one learner). τ: local steps in a tick, ≥ 1. base_momentum: μ, in [0, 1).

    Without gradients, the mean of the replicas and z follow a linear map with eigenvalues 1 and 1 − α(k + 1), so
    α < 2 / (k + 1) is needed: from there on the two swing around each other with growing amplitude.

    Fixed from the original: μ and τ are used (μ was 0.9 whenever the solver had momentum, τ was ignored).
    """

    name: ClassVar[str] = "sma"

    alpha: float | None = None
    tau: int = 1
    base_momentum: float = 0.0

    def __post_init__(self) -> None:
        self._check_alpha()
        self._check_integer("tau", 1)
        if not (is_number(self.base_momentum) and 0 <= self.base_momentum < 1):
            raise self.refuse("base_momentum", self.base_momentum, "a number in [0, 1)")

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        return self._merge(learners, self.base_momentum)


@dataclass(frozen=True)
class SynchronousEASGD(_Elastic):
    """Synchronous elastic averaging SGD (Zhang, Choromanska, LeCun, NeurIPS 2015, equations 2 and 3;
    synchronouseamsgd.c of the original): SMA without momentum of z::

        c_i = α (w_i − z),   w_i ← w_i + v_i − c_i,   z ← z + Σ c_i

    α and τ are as for SMA, and so is what is needed of α.

    Fixed from the original: c_i is of the weights before the step on any number of devices (on one GPU it was of those
    behind it).
    """

    name: ClassVar[str] = "synchronous-easgd"

    alpha: float | None = None
    tau: int = 1

    def __post_init__(self) -> None:
        self._check_alpha()
        self._check_integer("tau", 1)

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        return self._merge(learners, 0.0)
