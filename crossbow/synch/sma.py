"""Elastic averaging with a barrier: Crossbow's synchronous model averaging, and synchronous EASGD."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import parameters, setting
from crossbow.domains import Integer, Number
from crossbow.solver import Pace, SolverConf, Update, solver_step
from crossbow.synch.elastic import AlphaSteps, Elastic, TimedAlphas
from crossbow.synch.rule import BarrierRule

ONE_OVER_K = "1/k with k learners, 1/2 with one"
"""The default α."""
ROUNDING = 1e-12
"""Threshold below which a coefficient is the rounding error of 0."""


class _Synchronous(Elastic, BarrierRule):
    """Replicas and z are pulled towards each other, all at the same time."""

    sends: ClassVar[str] = "weights"

    def _check_stable(self, learners: int, base_momentum: float) -> None:
        """Raises ConfigurationError if z and the replicas would not converge without gradients."""
        mu, k = base_momentum, learners
        given = [("alpha", self.alpha), *(("alpha_steps", alpha) for _, alpha in self.alpha_steps)]
        for name, alpha in given:
            if alpha is not None and alpha * (k + 1 + mu) >= 2 * (1 + mu):
                bound = "2 (1 + μ)/(k + 1 + μ)" if mu else "2/(k + 1)"
                of = f"k = {k} learners" + f" and μ = {mu:g}" * bool(mu)
                allowed = f"< {bound} = {2 * (1 + mu) / (k + 1 + mu):.4g} with {of}, or z and replicas swing apart"
                raise self.refuse(name, alpha, allowed)

    def local_step(self, solver: SolverConf, pace: Pace, learners: int, *, synchronises: bool) -> Update:
        if not synchronises:
            return solver_step(solver, pace)
        step = solver_step(solver, pace, pull=self.strength(pace, learners))
        return step.depending_on(*self.strength_depends_on)

    def _merge(self, pace: Pace, learners: int, base_momentum: float) -> Update:
        # z + Σ α (w_i − z) + μ (z − z_prev)
        drawn = learners * self.strength(pace, learners)
        kept = 1 - drawn + base_momentum
        # With α = 1/k and μ = 0 the coefficient of z is 0; then z is not read.
        terms = {"base": kept} if abs(kept) > ROUNDING or self.alpha_steps else {}
        terms["mean"] = drawn
        if base_momentum:
            terms["base_previous"] = -base_momentum
        return Update((("base_next", terms),), depends_on=self.strength_depends_on)


@parameters
class SMA(_Synchronous):
    """Synchronous model averaging (Koliousis et al., VLDB 2019, Algorithm 1; sma.c and sma.cu of the original).

    With w_i before the last of the τ local steps and the solver's step v_i::

        c_i = α (w_i − z)
        w_i ← w_i + v_i − c_i
        z   ← z + Σ c_i + μ (z − z_prev)

    α: strength of the correction, in (0, 1]; None is 1/k with k learners, which makes z the mean of the replicas before
    their step (1/2 with one learner). alpha_steps: ascending pairs (time, α); α has the given value from that time on,
    in the solver's `learning_rate_step_unit`. τ: local steps per tick, ≥ 1. base_momentum: μ, in [0, 1).

    Without gradients, the mean of the replicas minus z, d, and the last change of z, e, follow the linear map
    d ← (1 − α (k + 1)) d − μ e, e ← α k d + μ e. It converges to 0 if α < 2 (1 + μ) / (k + 1 + μ); from there on, z and
    the replicas oscillate around each other.

    Use it by default: every learner keeps a small batch, and z is better than any replica. `base_momentum` speeds up
    training with few learners.

    Fixed from the original: μ and τ are used (μ was 0.9 whenever the solver had momentum, τ was ignored).

    See also: `EASGD`, `SynchronousEASGD`, `SSGD`.
    """

    name: ClassVar[str] = "sma"

    alpha: float | None = setting(Number(above=0, at_most=1, optional=True), default=None, meaning=ONE_OVER_K)
    tau: int = setting(Integer(at_least=1), default=1)
    base_momentum: float = setting(Number(at_least=0, below=1), default=0.0)
    """Momentum of the average model."""
    alpha_steps: AlphaSteps = setting(TimedAlphas(), default=(), meaning="none")

    def check_learners(self, learners: int) -> None:
        self._check_stable(learners, self.base_momentum)

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        return self._merge(pace, learners, self.base_momentum)


@parameters
class SynchronousEASGD(_Synchronous):
    """Synchronous elastic averaging SGD (Zhang, Choromanska, LeCun, NeurIPS 2015, equations 2 and 3;
    synchronouseamsgd.c of the original): SMA without momentum of z::

        c_i = α (w_i − z),   w_i ← w_i + v_i − c_i,   z ← z + Σ c_i

    α, its steps, its bound and τ are the same as for SMA.

    Use it for comparison with `EASGD`.

    Fixed from the original: c_i uses the weights before the step on any number of devices (on one GPU, it used those
    after the step).

    See also: `SMA`, `EASGD`.
    """

    name: ClassVar[str] = "synchronous-easgd"

    alpha: float | None = setting(Number(above=0, at_most=1, optional=True), default=None, meaning=ONE_OVER_K)
    tau: int = setting(Integer(at_least=1), default=1)
    alpha_steps: AlphaSteps = setting(TimedAlphas(), default=(), meaning="none")

    def check_learners(self, learners: int) -> None:
        self._check_stable(learners, 0.0)

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        return self._merge(pace, learners, 0.0)
