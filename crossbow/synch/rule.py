"""Synchronisation rules: the contributions of learners, their merge into the base model, and the replies.

There are three kinds, with different coordination of the learners: `BarrierRule` (by a clock tick), `FreeRule` (by the
base model, and a condition on which learners may start) and `PeerRule` (by the learners alone, which send each other
their weights). A rule defines its arithmetic as updates of vectors (`crossbow.solver.Update`), which the engine and the
simulator evaluate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

from crossbow.conf import is_integer, refuse
from crossbow.solver import Pace, SolverConf, Update, solver_step
from crossbow.solver.update import CONSTANT
from crossbow.types import ConfigurationError

NOTHING = Update((), depends_on=CONSTANT)
"""The empty update."""
MEAN = Update((("base_next", {"mean": 1.0}),), depends_on=CONSTANT)
"""The merge of local variables."""


class Rule(ABC):
    """A rule: small pure functions over flat vectors. Learner i has `weights`, `gradient`, and the solver's `velocity`
    and `second_moment`; `base` is z."""

    name: ClassVar[str]
    """Name on the command line."""
    tau: int
    """Number of a learner's tasks, each with a local step, between two exchanges."""
    reads_base: ClassVar[bool] = False
    """Whether learners compute with z itself, without their own weights (w_i = z)."""

    @property
    def sends_gradient(self) -> bool:
        """Whether a contribution is a gradient, and clipped as such. Otherwise the learner clips its own, in its
        step."""
        return False

    def tasks_per_merge(self, learners: int) -> int:
        """Number of tasks, of all learners, per merge."""
        return self.tau

    @abstractmethod
    def updates(self, solver: SolverConf, pace: Pace) -> tuple[Update, ...]:
        """An example of each kind of update that the rule makes, which shows the vectors that are needed."""

    def vectors(self, solver: SolverConf, pace: Pace) -> frozenset[str]:
        """Names of all vectors that the rule's updates read or write."""
        return frozenset(vector for update in self.updates(solver, pace) for vector in update.vectors)

    def counters(self, solver: SolverConf, pace: Pace) -> frozenset[str]:
        """Names of all counters of steps that the rule's updates advance."""
        return frozenset(update.count.name for update in self.updates(solver, pace) if update.count is not None)

    def check_learners(self, learners: int) -> None:  # noqa: B027 - most rules allow any number
        """Reject a number of learners for which the rule is undefined. Raises ConfigurationError."""

    def check_solver(self, solver: SolverConf) -> None:  # noqa: B027 - most rules work with any solver
        """Reject a solver that the rule does not support. Raises ConfigurationError."""

    def fitted(self, learners: int) -> Rule:
        """The rule for a new number of learners, after some have left or joined."""
        return self

    def settled(self, speeds: Sequence[float]) -> Rule:
        """The rule for learners of these speeds, if it depends on them. Raises ConfigurationError."""
        self.check_learners(len(speeds))
        return self

    def refuse(self, name: str, value: object, allowed: str) -> ConfigurationError:
        return refuse(self, name, value, allowed)

    def _check_one(self, name: str, meaning: str) -> None:
        value = getattr(self, name)
        if not is_integer(value) or value != 1:
            raise self.refuse(name, value, f"1: {meaning}")


class BarrierRule(Rule):
    """A rule with a barrier.

    With k learners and base model z (`base`), a clock tick is τ local steps of every learner, the last of which
    synchronises. Every learner sends `sends`, `merge` computes the next z from their `mean`, and `reply` updates the
    learner afterwards.
    """

    sends: ClassVar[str]
    """Contribution of a learner: its "weights" before the synchronising step, its "gradient", or its "new weights"
    after that step."""

    @property
    def sends_gradient(self) -> bool:
        return self.sends == "gradient"

    @property
    def sent_vector(self) -> str:
        """The learner's vector that is sent."""
        return "gradient" if self.sends_gradient else "weights"

    def tasks_per_merge(self, learners: int) -> int:
        return learners * self.tau

    @abstractmethod
    def local_step(self, solver: SolverConf, pace: Pace, learners: int, *, synchronises: bool) -> Update:
        """A learner's step on `weights`, `gradient`, the solver's vectors and, if it synchronises, `base`. May be
        empty."""

    @abstractmethod
    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        """z: from `base`, `base_previous`, `mean` and, if z itself is stepped, `base_velocity` and
        `base_second_moment`, to `base_next` (which overwrites `base_previous`)."""

    def reply(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        """Update of a learner's `weights` after the merge, from `base` and `base_next`. Empty unless it sends its new
        weights, because earlier updates must not be visible to other learners."""
        return NOTHING

    def updates(self, solver: SolverConf, pace: Pace) -> tuple[Update, ...]:
        step, local = (self.local_step(solver, pace, 1, synchronises=last) for last in (True, False))
        return step, local, self.merge(solver, pace, 1), self.reply(solver, pace, 1)


class Arrival(NamedTuple):
    """Numbers that describe a contribution that arrives at z."""

    learner: int
    """The learner that sends it; with several contributors, the last of them."""
    learners: int
    """Number of learners on all devices, k."""
    contributors: int = 1
    """Number of learners whose contributions are merged together with it."""
    staleness: int = 1
    """Y = 1 + the number of merges since the contributors' last z; 1 is fresh."""
    finishers: tuple[int, ...] = ()
    """Learners that arrived before, the latest last, including those whose contribution was dropped; at most the
    rule's `remembers`."""


class FreeRule(Rule):
    """A rule without a barrier: learners exchange with z one by one, after every τ local steps.

    A learner *arrives* after these steps. Once all `contributors` have arrived, ω and `merge` define the new z. Then
    the learner *waits* until it `may_start`, and `reply` defines the weights that it continues with. Nothing depends
    on time, only on the order of arrivals.
    """

    locks: ClassVar[bool] = True
    """Whether merges and replies are serialised; otherwise they run concurrently on one z."""
    takes_base: ClassVar[bool] = False
    """Whether learners continue with z. Then variables may be skipped in a merge."""
    restarts_together: ClassVar[bool] = False
    """Whether clocks count from the last time that all learners continued together."""
    drifts: ClassVar[bool] = False
    """Whether learners with different numbers of finished tasks may all wait for each other."""

    def remembers(self, learners: int) -> int:
        """Number of latest arrivals that ω depends on."""
        return 0

    def local_step(self, solver: SolverConf, pace: Pace) -> Update:
        """A learner's own step on `weights`, `gradient` and the solver's vectors, in every task."""
        return NOTHING if self.sends_gradient else solver_step(solver, pace)

    def contributors(self, learner: int, learners: int) -> tuple[int, ...]:
        """The learners whose contributions are merged together with this one's, in order."""
        return (learner,)

    def omega(self, arrival: Arrival) -> float:
        """ω of the contribution. If it is 0, the contribution is dropped, and z does not change."""
        return 1.0

    @abstractmethod
    def merge(self, solver: SolverConf, pace: Pace, arrival: Arrival) -> Update:
        """z: `base` and, if z itself is stepped, `base_velocity` and `base_second_moment`, from a contributor's
        `weights`, `taken` (the result of its last reply), `gradient` and the solver's vectors. With several
        contributors, only `gradient` is available, and is their sum. The form is the same for every arrival with a
        non-zero ω."""

    def reply(self, solver: SolverConf, pace: Pace) -> Update:
        """A learner's new `weights` and `taken`, from `base`. `gradient` is as the merge left it."""
        return NOTHING

    @property
    def most_ahead(self) -> int | None:
        """The largest difference between a learner's clock and the smallest one with which it may start, if nothing
        else matters; None if `may_start` decides. A given number is faster with many learners."""
        return None

    def starters(self, clocks: Sequence[int], waiting: Collection[int], learners: Collection[int]) -> list[int]:
        """The waiting learners, of these, that `may_start`. Rules override it to be fast with many learners."""
        return [learner for learner in learners if self.may_start(clocks, waiting, learner)]

    def may_start(self, clocks: Sequence[int], waiting: Collection[int], learner: int) -> bool:
        """Whether the waiting learner may continue after clocks[i] arrivals of each learner i."""
        return self.most_ahead is None or clocks[learner] - min(clocks) <= self.most_ahead

    def updates(self, solver: SolverConf, pace: Pace) -> tuple[Update, ...]:
        return self.local_step(solver, pace), self.merge(solver, pace, Arrival(0, 1)), self.reply(solver, pace)


class PeerRule(Rule):
    """A rule without a base model. After τ local steps, a learner mixes in the messages that it has received, and may
    send its weights to another learner. Every learner and every message has a mass; the total is 1. z is the mean
    weighted by mass.

    All messages on their way to a learner are stored as one, because mixing is associative.
    """

    def local_step(self, solver: SolverConf, pace: Pace) -> Update:
        """A learner's own step."""
        return solver_step(solver, pace)

    @abstractmethod
    def peer(self, learner: int, learners: int, clock: int, seed: int) -> int | None:
        """The receiver of the learner's weights after the given number of previous arrivals; None if it sends
        nothing."""

    def part_sent(self) -> float:
        """The fraction of its mass that a sender gives away."""
        return 0.5

    @abstractmethod
    def mix(self, mass: float, received: float) -> Update:
        """Combine `weights`, whose mass is `mass`, and `received`, whose mass is `received`, in `weights`. At least one
        mass is not 0."""

    def updates(self, solver: SolverConf, pace: Pace) -> tuple[Update, ...]:
        return self.local_step(solver, pace), self.mix(0.5, 0.5)
