"""Rules in which learners step z one by one: asynchronous SGD, and variants that bound, weight or combine the steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from crossbow.conf import Domain, is_number, parameters, setting
from crossbow.domains import Choice, Integer, Number
from crossbow.solver import Pace, SolverConf, Update, solver_step
from crossbow.solver.update import CONSTANT
from crossbow.synch.elastic import AlphaSteps, Elastic, TimedAlphas
from crossbow.synch.rule import Arrival, FreeRule

STALENESS = "1/staleness"
"""The weight 1/Y."""


@dataclass(frozen=True)
class Weight(Domain):
    """Weights of contributions: numbers in (0, 1], which text may give as fractions, and 1/Y."""

    @property
    def allowed(self) -> str:
        return f"a number in (0, 1], as 0.25 or '1/4', or {STALENESS!r}"

    @property
    def placeholder(self) -> str:
        return "W"

    def canonical(self, value: Any) -> float | str:
        if isinstance(value, str):
            if value in ("staleness", STALENESS):
                return STALENESS
            try:
                value = float(Fraction(value))
            except ZeroDivisionError:
                raise ValueError(value) from None
        if not is_number(value) or not 0 < value <= 1:
            raise ValueError(value)
        weight: float = value
        return weight

    def read(self, text: str) -> str:
        """The text, which the rule validates."""
        return text


class _Asynchronous(FreeRule):
    """A contribution is added to z when it arrives, and its learner continues with z.

    A delta is the sum of a learner's τ steps, Δ_i = w_i − z_taken: z ← z + ω Δ_i. For a gradient, z's own solver makes
    the step: z ← solver(z, ω g_i). The velocity is z's, and ω does not scale the weight decay.
    """

    takes_base: ClassVar[bool] = True

    def merge(self, solver: SolverConf, pace: Pace, arrival: Arrival) -> Update:
        omega = self.omega(arrival)
        if self.sends_gradient:
            step = solver_step(solver, pace, weights="base", state="base_")
            return step if omega == 1 else step.expand("gradient", {"gradient": omega})
        return Update((("base", {"base": 1.0, "weights": omega, "taken": -omega}),), depends_on=CONSTANT)

    def reply(self, solver: SolverConf, pace: Pace) -> Update:
        take = ("weights", {"base": 1.0})
        steps = (take,) if self.sends_gradient else (take, ("taken", {"base": 1.0}))
        return Update(steps, depends_on=CONSTANT)


class _Weighed(_Asynchronous):
    """Contributions have a weight, which is a number or 1/Y."""

    weight: float | str
    """Weight of each contribution, in (0, 1], as 0.25 or 1/4; or 1/staleness."""

    def omega(self, arrival: Arrival) -> float:
        return 1 / arrival.staleness if isinstance(self.weight, str) else self.weight

    def check_solver(self, solver: SolverConf) -> None:
        if self.sends_gradient and solver.is_adaptive and not isinstance(self.weight, str) and self.weight != 1:
            method = f"method={solver.method!r}, whose step does not depend on the size of the gradients that are sent"
            raise self.refuse("weight", self.weight, f"1 or {STALENESS!r} with {method}")


class _Together(_Asynchronous):
    """Of the learners that wait, all may start, or none."""

    restarts_together: ClassVar[bool] = True

    def starters(self, clocks: Sequence[int], waiting: Collection[int], learners: Collection[int]) -> list[int]:
        return list(learners) if learners and self.may_start(clocks, waiting, next(iter(learners))) else []


@parameters
class AsynchronousSGD(_Weighed):
    """Asynchronous SGD (Dean et al., NeurIPS 2012, Downpour; SpeeDO without options; MXNet-G's dist_async)::

        sends="delta":     z ← z + ω Δ_i,           the learner continues with w_i = z
        sends="gradient":  z ← solver(z, ω g_i),    the learner continues with w_i = z

    weight: ω, a number 1/f in (0, 1] (SpeeDO's --factor f), or "1/staleness", with Y = 1 + the number of merges since
    the learner took z (MXNet-G's description promises this, but its code omits it). τ: local steps of a delta.

    With one learner and ω = 1 it is plain SGD.

    Use it if learners must never wait. Its gradients are stale by about k merges, so lower the learning rate, or use
    the weight 1/k or "1/staleness".

    See also: `SSP`, `PartiallySynchronous`, `WeedOut`, `EASGD`.
    """

    name: ClassVar[str] = "async"

    weight: float | str = setting(Weight(), default=1.0)
    sends: str = setting(Choice(("delta", "gradient")), default="delta")
    """The contribution of a learner: the sum of its steps, or a gradient."""
    tau: int = setting(Integer(at_least=1), default=1)

    def __post_init__(self) -> None:
        if self.sends_gradient:
            self._check_one("tau", "a gradient is sent at every step")

    @property
    def sends_gradient(self) -> bool:
        return self.sends == "gradient"


@parameters
class SSP(_Weighed):
    """Stale synchronous parallel (Ho et al., NeurIPS 2013; MXNet-G's dist_ssync): asynchronous SGD, in which a learner
    may begin a task only if it is at most `bound` tasks ahead of the slowest learner::

        may start:  clock_i − min clock ≤ s;    z ← solver(z, ω g_i),  w_i = z when it starts

    bound: s ≥ 0; with 0, no learner begins a round before all have ended the previous one. A learner that had to wait
    takes z as it is when the learner may continue. weight: as for asynchronous SGD.

    Use it to bound the staleness of gradients.

    Fixed from MXNet-G: the minimum is over all learners instead of one machine's, and waiting has no time limit.

    See also: `AsynchronousSGD`, `PartiallySynchronous`.
    """

    name: ClassVar[str] = "ssp"

    bound: int = setting(Integer(at_least=0), default=0)
    """Maximum lead over the slowest learner, in tasks, with which a learner may begin a task."""
    weight: float | str = setting(Weight(), default=1.0)
    tau: int = 1

    def __post_init__(self) -> None:
        self._check_one("tau", "a gradient is sent at every step")

    @property
    def sends_gradient(self) -> bool:
        return True

    @property
    def most_ahead(self) -> int:
        return self.bound


@parameters
class PartiallySynchronous(_Together):
    """Partially synchronous SGD (SpeeDO's --maxAdvance): asynchronous deltas, until the fastest learner is
    `max_advance` contributions ahead of the slowest; then a barrier.

    From then on, every learner that arrives is merged, and waits. When all wait, they continue together with the same
    z, and count from 0 again: slow learners need not catch up. max_advance: m ≥ 1. Across ranks, the barrier does not
    wait for a learner that gets no task until others have ended theirs.

    See also: `AsynchronousSGD`, `SSP`.
    """

    name: ClassVar[str] = "partially-synchronous"
    drifts: ClassVar[bool] = True

    max_advance: int = setting(Integer(at_least=1), default=1)
    """Lead of the fastest learner over the slowest, in contributions, at which a barrier begins."""
    tau: int = setting(Integer(at_least=1), default=1)

    def may_start(self, clocks: Sequence[int], waiting: Collection[int], learner: int) -> bool:
        if len(waiting) > 1:  # only if the barrier has begun
            return len(waiting) == len(clocks)
        return len(clocks) == 1 or max(clocks) - min(clocks) < self.max_advance


@parameters
class WeedOut(_Asynchronous):
    """Weed-out (SpeeDO's --weedout, called --drop in its documents): asynchronous deltas, except those of learners
    that have fallen behind, which are dropped::

        ω = 1 if i is among the last N finishers, else 0;    N = max(window, k)

    The finishers include learners whose contribution was dropped, but not this arrival; the first N are all merged. A
    learner whose contribution is dropped continues with z.

    Use it if slow learners should not contribute stale steps.

    See also: `AsynchronousSGD`, `SSP`.
    """

    name: ClassVar[str] = "weed-out"

    window: int = setting(Integer(at_least=1), default=1, meaning="the number of learners")
    """Number of last finishers; the contributions of all other learners are omitted.

    At least the number of learners is used."""
    tau: int = setting(Integer(at_least=1), default=1)

    def remembers(self, learners: int) -> int:
        return max(self.window, learners)

    def omega(self, arrival: Arrival) -> float:
        full = len(arrival.finishers) >= self.remembers(arrival.learners)
        return 0.0 if full and arrival.learner not in arrival.finishers else 1.0


@parameters
class Default(_Together):
    """The original's update model DEFAULT (default.cu, default.c): every learner adds its step to z as soon as it is
    computed, and takes z at the end of the tick::

        w_i ← w_i + v_i,  z ← z + v_i;    when all have done so:  w_i ← z

    z moves by the sum of the learners' steps, where model averaging uses their mean: with k learners it moves k times
    as far, and the learning rate must be chosen accordingly. τ: steps of a learner in a tick, which reach z together.

    See also: `ModelAveraging`.
    """

    name: ClassVar[str] = "default"

    tau: int = setting(Integer(at_least=1), default=1)

    def may_start(self, clocks: Sequence[int], waiting: Collection[int], learner: int) -> bool:
        return len(waiting) == len(clocks)


@parameters
class Hogwild(FreeRule):
    """Hogwild (Niu, Recht, Ré, Wright, NeurIPS 2011): all learners compute with z itself, and step it in place, without
    a lock::

        z ← solver(z, g_i)

    A learner may overwrite another's update: rarely if gradients are sparse, and with a small error otherwise. Each
    learner has its own velocity. With one learner it is plain SGD.

    Use it for sparse gradients, or to save the memory of the replicas.

    See also: `AsynchronousSGD`.
    """

    name: ClassVar[str] = "hogwild"
    reads_base: ClassVar[bool] = True
    locks: ClassVar[bool] = False
    takes_base: ClassVar[bool] = True

    tau: int = 1

    def __post_init__(self) -> None:
        self._check_one("tau", "z is stepped at every task")

    @property
    def sends_gradient(self) -> bool:
        return True

    def merge(self, solver: SolverConf, pace: Pace, arrival: Arrival) -> Update:
        return solver_step(solver, pace, weights="base")


@parameters
class EASGD(Elastic, FreeRule):
    """Asynchronous elastic averaging SGD (Zhang, Choromanska, LeCun, NeurIPS 2015, algorithm 1; SpeeDO's --movingRate;
    Theano-MPI's EASGD)::

        τ times: w_i ← w_i + v_i;   then d = α (w_i − z),   w_i ← w_i − d,   z ← z + d

    Both sides move by the same d, computed after the local steps. α: in (0, 1]; with ½, as in Theano-MPI, they meet in
    the middle. alpha_steps: as for SMA. τ: 10 in Theano-MPI, SpeeDO's --train.

    Use it like `SMA`, if learners differ in speed.

    See also: `SMA`, `SynchronousEASGD`.
    """

    name: ClassVar[str] = "easgd"

    alpha: float = setting(Number(above=0, at_most=1), default=0.5)
    tau: int = setting(Integer(at_least=1), default=1)
    alpha_steps: AlphaSteps = setting(TimedAlphas(), default=(), meaning="none")

    def merge(self, solver: SolverConf, pace: Pace, arrival: Arrival) -> Update:
        # The gradient has been used, so its memory stores d.
        alpha = self.strength(pace, arrival.learners)
        difference = ("gradient", {"weights": alpha, "base": -alpha})
        steps = difference, ("base", {"base": 1.0, "gradient": 1.0})
        return Update(steps, depends_on=self.strength_depends_on)

    def reply(self, solver: SolverConf, pace: Pace) -> Update:
        return Update((("weights", {"weights": 1.0, "gradient": -1.0}),), depends_on=CONSTANT)
