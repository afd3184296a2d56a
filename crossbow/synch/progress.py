"""State of the exchanges under a rule without a barrier, in numbers only. Engine and simulator share it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from crossbow.solver import SolverConf, Update
from crossbow.solver.update import CONSTANT, total
from crossbow.synch.rule import Arrival, FreeRule, Rule
from crossbow.types import ConfigurationError


class Merge(NamedTuple):
    """Contributions to merge, or to drop."""

    contributors: tuple[int, ...]
    arrival: Arrival
    dropped: bool


class ExchangeState:
    """Tracks the arrivals of each learner, the learners that wait, and the age of each learner's z."""

    def __init__(self, rule: FreeRule, learners: int) -> None:
        self.rule, self.learners = rule, learners
        self.merges = 0
        """Merges of all learners since the beginning, without dropped contributions."""
        self.arrivals = self.dropped = self.staleness = 0
        """Numbers of complete and of dropped contributions since the beginning, and the sum of their staleness."""
        self._finishers: deque[int] = deque(maxlen=rule.remembers(learners))
        self.waiting: set[int] = set()
        self.resting: set[int] = set()
        """Learners without a task, for which no other learner waits."""
        self._taken: list[int] = []
        self._slowest = self._slow = 0
        """The smallest clock, and the number of learners that have it."""
        self._asked: set[int] = set()
        """Waiting learners that have not been refused since the smallest clock has changed."""
        self.restart()

    def follow(self, rule: FreeRule) -> list[int]:
        """Continue with another rule of the same class. Returns the waiting learners, in order: they must arrive once
        more, under the new rule, before any other learner does anything."""
        waiting, self.rule = sorted(self.waiting), rule
        self.waiting.clear()
        for learner in waiting:
            self.clocks[learner] -= 1
        self._find_slowest()
        return waiting

    def leave(self, learner: int) -> None:
        """Continue without this learner. Those after it move up by one."""
        self.learners -= 1
        del self.clocks[learner], self._taken[learner]
        self.waiting = {other - (other > learner) for other in self.waiting if other != learner}
        self.resting = {other - (other > learner) for other in self.resting if other != learner}
        self._renumber([other - (other > learner) for other in self._finishers if other != learner])

    def join(self, learner: int) -> None:
        """Continue with one more learner, of this number, which has taken z. Those from this number on move down by
        one. Its clock is that of the slowest, so that no other learner waits for it."""
        self.learners += 1
        self.clocks.insert(learner, min(self.clocks))
        self._taken.insert(learner, self.merges)
        self.waiting = {other + (other >= learner) for other in self.waiting}
        self.resting = {other + (other >= learner) for other in self.resting}
        self._renumber([other + (other >= learner) for other in self._finishers])

    def _renumber(self, finishers: list[int]) -> None:
        self._finishers = deque(finishers, maxlen=self.rule.remembers(self.learners))
        self._find_slowest()

    def _find_slowest(self) -> None:
        """Find the smallest clock. Learners that wait because of it are asked again."""
        self._slowest = min(self.clocks)
        self._slow = self.clocks.count(self._slowest)
        self._asked = set(self.waiting)

    def forget(self) -> None:
        """Forget the last finishers."""
        self._finishers.clear()

    def restart(self) -> None:
        """Record that all learners have taken z, and none waits."""
        self.clocks = [0] * self.learners
        self.waiting.clear()
        self.resting.clear()
        self._taken = [self.merges] * self.learners
        self._find_slowest()

    def state(self) -> dict[str, Any]:
        """The state on which the next arrivals depend, as JSON values."""
        return {
            "merges": self.merges,
            "arrivals": [self.arrivals, self.dropped, self.staleness],
            "finishers": list(self._finishers),
            "clocks": self.clocks,
            "waiting": sorted(self.waiting),
            "taken": self._taken,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same rule with the same number of learners."""
        self.merges, self.clocks, self._taken = state["merges"], list(state["clocks"]), list(state["taken"])
        self.arrivals, self.dropped, self.staleness = state["arrivals"]
        self.waiting = set(state["waiting"])
        self._find_slowest()
        self._finishers.clear()
        self._finishers.extend(state["finishers"])

    def arrive(self, learner: int) -> Merge | None:
        """Record that the learner has done its local steps. Returns the merge to do now, or None while it is
        incomplete."""
        self._slow -= self.clocks[learner] == self._slowest
        self.clocks[learner] += 1
        self.resting.discard(learner)
        self.waiting.add(learner)
        self._asked.add(learner)
        if not self._slow:
            self._find_slowest()
        contributors = self.rule.contributors(learner, self.learners)
        if not self.waiting.issuperset(contributors):
            return None
        staleness = 1 + self.merges - min(map(self._taken.__getitem__, contributors))
        arrival = Arrival(learner, self.learners, len(contributors), staleness, tuple(self._finishers))
        dropped = self.rule.omega(arrival) == 0
        self.arrivals += 1
        self.dropped += dropped
        self.staleness += staleness
        self._finishers.append(learner)
        self.merges += not dropped
        return Merge(contributors, arrival, dropped)

    def rest(self, learner: int) -> None:
        """Record that the learner has no task, unless it waits. Until it arrives, the others ignore it."""
        if learner not in self.waiting:
            self.resting.add(learner)

    def let_go(self) -> list[int]:
        """The waiting learners that may start. They no longer wait, and take the current z."""
        going = self._may_start(self.waiting)
        together = len(going) == self.learners
        if not going and self.resting:
            going = self._may_start(self.waiting | self.resting)
            together = bool(going)
        for learner in going:
            self._taken[learner] = self.merges
        self.waiting.difference_update(going)
        self._asked.clear()
        if self.rule.restarts_together and together:
            self.clocks = [0] * self.learners
            self._find_slowest()
        return going

    def _may_start(self, waiting: set[int]) -> list[int]:
        """The waiting learners that may start if these wait."""
        most = self.rule.most_ahead
        if most is None:
            return sorted(self.rule.starters(self.clocks, waiting, self.waiting))
        return sorted(learner for learner in self._asked if self.clocks[learner] - self._slowest <= most)


class Masses:
    """Masses of the learners under a rule without a base model, and of the messages on their way to each."""

    def __init__(self, learners: int, here: int | None = None) -> None:
        """here: number of learners in this process, if other processes hold the masses of the others."""
        here = learners if here is None else here
        self.own = [1 / learners] * here
        self.coming = [0.0] * here

    def receive(self, learner: int) -> tuple[float, float]:
        """Let the learner receive its messages. Returns its previous mass, and the mass received."""
        before, received = self.own[learner], self.coming[learner]
        self.own[learner], self.coming[learner] = before + received, 0.0
        return before, received

    def send(self, learner: int, peer: int, part: float) -> tuple[float, float]:
        """Send a part of the learner's mass to a peer. Returns the mass already on its way there, and the mass sent."""
        return self.bring(peer, self.take(learner, part))

    def take(self, learner: int, part: float) -> float:
        """Take a part of the learner's mass away. Returns it."""
        sent = part * self.own[learner]
        self.own[learner] -= sent
        return sent

    def bring(self, peer: int, mass: float) -> tuple[float, float]:
        """Add a mass to the messages for a peer. Returns their previous mass, and the mass added."""
        before = self.coming[peer]
        self.coming[peer] = before + mass
        return before, mass

    def leave(self, learner: int) -> None:
        """Continue without this learner, and the messages for it. Those after it move up by one."""
        del self.own[learner], self.coming[learner]

    def join(self, learner: int, mass: float) -> None:
        """Continue with one more learner, of this number and mass. Those from this number on move down by one."""
        self.own.insert(learner, mass)
        self.coming.insert(learner, 0.0)

    def scale(self, factor: float) -> None:
        """Multiply all masses."""
        self.own = [factor * mass for mass in self.own]
        self.coming = [factor * mass for mass in self.coming]

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return sum(self.own) + sum(self.coming)

    def restore(self, own: Sequence[float], coming: Sequence[float]) -> None:
        """Set the masses."""
        self.own, self.coming = list(own), list(coming)

    @property
    def mean(self) -> Update:
        """`base` ← the mean by mass of all `weights` (weights0, …) and of the messages on their way (received0, …)."""
        terms = {**total("weights", self.own), **total("received", self.coming)}
        return Update((("base", terms),), depends_on=CONSTANT)


def left_out(probability: float, variables: int, learner: int, draw: int, seed: int) -> list[bool]:
    """For each variable, whether a merge skips it (SpeeDO's --skip). This is a function of the seed, of the learner
    whose contribution arrived last, and of the number of the draw: the learner's previous merged contributions, counted
    from the tick with which the rule began."""
    generator = np.random.Philox(key=np.array([seed % 2**64, 2**32 + learner], np.uint64), counter=draw << 64)
    return [int(drawn) < int(probability * 2**64) for drawn in generator.random_raw(variables)]


def check_skip(probability: float, rule: Rule, solver: SolverConf) -> None:
    """Reject `skip` for rules and solvers that do not support it. Raises ConfigurationError."""
    if not probability:
        return
    if not isinstance(rule, FreeRule) or not rule.takes_base:
        raise ConfigurationError(
            "skip must be 0 under a rule whose learners do not add to z and continue with it. "
            f"Received: skip={probability}, rule={rule}"
        )
    if rule.sends_gradient and solver.is_adaptive:
        raise ConfigurationError(
            f"skip must be 0 if gradients are sent and method={solver.method!r}, which steps all variables of z alike. "
            f"Received: skip={probability}, rule={rule}"
        )
    if rule.sends_gradient and solver.clip_gradient_norm is not None:
        raise ConfigurationError(
            "skip must be 0 if gradients that are sent are clipped by their norm as a whole. "
            f"Received: skip={probability}, rule={rule}"
        )


def check_local_variables(given: Collection[object], rule: Rule) -> None:
    """Reject local variables for rules that do not support them. Raises ConfigurationError."""
    if given and (rule.reads_base or rule.sends_gradient):
        raise ConfigurationError(
            "local_variables must be () under a rule by which learners send gradients, without a step of their own. "
            f"Received: local_variables={given}, rule={rule}"
        )


def of_all(update: Update, contributors: int) -> Update:
    """A merge of several contributions at once, with the sum of their gradients (gradient0, …) for `gradient`."""
    return update.expand("gradient", total("gradient", [1.0] * contributors)) if contributors > 1 else update
