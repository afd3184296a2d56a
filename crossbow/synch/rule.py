"""What a synchronisation rule is: what learners send, how it is merged into the base model, what they get back.

There are three kinds, by what holds the learners together: `BarrierRule` (a clock tick), `FreeRule` (nothing but the
base model, and a gate that says who may start) and `PeerRule` (learners alone, which send each other their weights).
What a rule does to vectors is said in updates (`crossbow.solver.Update`), which the engine and the simulator evaluate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

from crossbow.conf import SolverConf, is_integer, is_number, shown
from crossbow.solver import Pace, Update, solver_step
from crossbow.types import ConfigurationError

NOTHING = Update(())
"""The update that does nothing."""


class Rule(ABC):
    """A rule: small pure parts over flat vectors. Learner i holds `weights`, `gradient`, `velocity`; `base` is z."""

    name: ClassVar[str]
    """On the command line."""
    tau: int
    """A learner's tasks, each with a local step, between two exchanges."""
    reads_base: ClassVar[bool] = False
    """Whether learners compute with z itself and have no weights of their own (w_i = z)."""

    every_step: ClassVar[bool] = False
    """Whether τ is always 1."""

    @property
    def sends_gradient(self) -> bool:
        """Whether a contribution is a gradient, to be clipped as such; else the learner clips its own, in its step."""
        return False

    def at(self, pace: Pace, tick: int, time: float) -> Pace:
        """The pace with what of the rule itself changes while training goes on. tick: its number, from 0; in a sequence
        of rules, from the phase's first. time: since the start, as the solver's schedule counts it, in its
        `learning_rate_step_unit`."""
        return pace

    def tasks_per_merge(self, learners: int) -> int:
        """Tasks of all learners that one merge is made of."""
        return self.tau

    @abstractmethod
    def updates(self, solver: SolverConf, pace: Pace) -> tuple[Update, ...]:
        """One of each kind that the rule makes: they show which vectors there must be."""

    def vectors(self, solver: SolverConf, pace: Pace) -> frozenset[str]:
        """The names of all vectors that the rule's updates read or write."""
        return frozenset(vector for update in self.updates(solver, pace) for vector in update.vectors)

    def check_learners(self, learners: int) -> None:  # noqa: B027 - most rules allow any number
        """Refuse a number of learners for which the rule has no meaning. Raises ConfigurationError."""

    def settled(self, speeds: Sequence[float]) -> Rule:
        """The rule for learners of these speeds, where it depends on them. Raises ConfigurationError."""
        self.check_learners(len(speeds))
        return self

    def refuse(self, name: str, value: object, allowed: str) -> ConfigurationError:
        return ConfigurationError(f"{type(self).__name__}: {name} must be {allowed}. Received: {name}={shown(value)}")

    def _check_integer(self, name: str, minimum: int, meaning: str = "") -> None:
        value = getattr(self, name)
        if not is_integer(value) or value < minimum:
            raise self.refuse(name, value, f"an integer ≥ {minimum}{meaning}")

    def _check_one(self, name: str, meaning: str) -> None:
        value = getattr(self, name)
        if not is_integer(value) or value != 1:
            raise self.refuse(name, value, f"1: {meaning}")

    def _check_strength(self, name: str, *, zero: bool = False, default: str = "") -> None:
        """The field is a number in (0, 1] or, with `zero`, in [0, 1]; or None, where that is said to have a meaning."""
        value = getattr(self, name)
        if value is None and default:
            return
        if not (is_number(value) and (value >= 0 if zero else value > 0) and value <= 1):
            bounds = "[0, 1]" if zero else "(0, 1]"
            raise self.refuse(name, value, f"a number in {bounds}" + f" or None ({default})" * bool(default))


class BarrierRule(Rule):
    """A rule with a barrier.

    With k learners and base model z (`base`), a clock tick is τ local steps of every learner, of which the last
    synchronises. Every learner sends `sends`, `merge` makes the next z of their `mean`, and `reply` is what the learner
    does once that is there.
    """

    sends: ClassVar[str]
    """What a learner contributes: its "weights" before the synchronising step, its "gradient", or its "new weights",
    those behind that step."""

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
        """A learner's step on `weights`, `gradient`, `velocity`, and `base` where it synchronises. May be empty."""

    @abstractmethod
    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        """z: from `base`, `base_previous`, `mean`, `base_velocity` to `base_next` (written over `base_previous`)."""

    def reply(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        """What a learner does with its `weights` behind the merge, of `base` and `base_next`. Empty unless it sends
        its new weights: what it does before is then not to be seen by the others."""
        return NOTHING

    def updates(self, solver: SolverConf, pace: Pace) -> tuple[Update, ...]:
        step, local = (self.local_step(solver, pace, 1, synchronises=last) for last in (True, False))
        return step, local, self.merge(solver, pace, 1), self.reply(solver, pace, 1)


class Arrival(NamedTuple):
    """A contribution that arrives at z, in numbers."""

    learner: int
    """Who sends it: of several, the last."""
    learners: int
    """Of all devices, k."""
    contributors: int = 1
    """How many learners' contributions are merged together."""
    staleness: int = 1
    """Y = 1 + how many merges there were since the contributors' last z: 1 is fresh."""
    finishers: tuple[int, ...] = ()
    """Who arrived before, at the most the rule's `remembers`, the latest last; those whose contribution was dropped
    too."""


class FreeRule(Rule):
    """A rule without a barrier: learners meet z one by one, whenever they have done τ local steps.

    A learner that has done them *arrives*. Once all `contributors` have, ω and `merge` say what becomes of z; then it
    *waits* until it `may_start`, and `reply` gives it what it goes on with. Nothing depends on time, only on the order
    of arrivals.
    """

    locks: ClassVar[bool] = True
    """Whether merges and replies come one after the other; else they run at the same time, over one z."""
    skips: ClassVar[bool] = False
    """Whether variables may be left out of a merge: what a learner goes on with is then z's."""
    restarts_together: ClassVar[bool] = False
    """Whether clocks count from the last time that all learners were let go together."""

    def remembers(self, learners: int) -> int:
        """How many of the last arrivals ω depends on."""
        return 0

    def local_step(self, solver: SolverConf, pace: Pace) -> Update:
        """A learner's own step on `weights`, `gradient`, `velocity`, in every task."""
        return NOTHING if self.sends_gradient else solver_step(solver, pace)

    def contributors(self, learner: int, learners: int) -> tuple[int, ...]:
        """The learners whose contributions are merged together with this one's, in order."""
        return (learner,)

    def omega(self, arrival: Arrival) -> float:
        """ω of the contribution; with 0 it is dropped, and z stays as it is."""
        return 1.0

    @abstractmethod
    def merge(self, solver: SolverConf, pace: Pace, arrival: Arrival) -> Update:
        """z: `base` and `base_velocity`, of a contributor's `weights`, `taken` (what its last reply gave it),
        `gradient` and `velocity`; of several only `gradient`, which stands for the sum. It has the same form for every
        arrival with a weight."""

    def reply(self, solver: SolverConf, pace: Pace) -> Update:
        """What a learner starts with: its `weights`, and `taken`, of `base`. `gradient` is as the merge left it."""
        return NOTHING

    def may_start(self, clocks: Sequence[int], waiting: Collection[int], learner: int) -> bool:
        """Whether the waiting learner may go on, where learner i has arrived clocks[i] times."""
        return True

    def updates(self, solver: SolverConf, pace: Pace) -> tuple[Update, ...]:
        return self.local_step(solver, pace), self.merge(solver, pace, Arrival(0, 1)), self.reply(solver, pace)


class PeerRule(Rule):
    """A rule without a base model: after τ local steps a learner mixes in what has come for it, and may send its
    weights to another. Every learner and every message has a mass, all together 1; z is the mean by mass.

    What is on its way to a learner is kept as one message: mixing is associative.
    """

    def local_step(self, solver: SolverConf, pace: Pace) -> Update:
        """A learner's own step."""
        return solver_step(solver, pace)

    @abstractmethod
    def peer(self, learner: int, learners: int, clock: int, seed: int) -> int | None:
        """To whom a learner sends when it has arrived so often before, if to anybody."""

    def part_sent(self) -> float:
        """The part of its mass that a sender gives away."""
        return 0.5

    @abstractmethod
    def mix(self, mass: float, received: float) -> Update:
        """`weights` (of this mass) and `received` (of that) become `weights` of both. One of them is not 0."""

    def updates(self, solver: SolverConf, pace: Pace) -> tuple[Update, ...]:
        return self.local_step(solver, pace), self.mix(0.5, 0.5)
