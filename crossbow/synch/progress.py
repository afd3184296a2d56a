"""The bookkeeping around a rule without a barrier: pure numbers, the same for the engine and the simulator."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from crossbow.conf import SolverConf
from crossbow.solver import Update
from crossbow.solver.update import total
from crossbow.synch.rule import Arrival, FreeRule, Rule
from crossbow.types import ConfigurationError


class Merge(NamedTuple):
    """Contributions that are merged now, or dropped."""

    contributors: tuple[int, ...]
    arrival: Arrival
    dropped: bool


class Progress:
    """Who has arrived how often, who waits, and from how many merges ago everybody's z is."""

    def __init__(self, rule: FreeRule, learners: int) -> None:
        self.rule, self.learners = rule, learners
        self.merges = 0
        """Of all learners, since the beginning; what was dropped does not count."""
        self._finishers: deque[int] = deque(maxlen=rule.remembers(learners))
        self.restart()

    def follow(self, rule: FreeRule) -> list[int]:
        """Go on by another rule of this class. The learners that wait, in order: they have to arrive once more, under
        the new rule, before anybody else does anything."""
        waiting, self.rule = sorted(self.waiting), rule
        self.waiting.clear()
        for learner in waiting:
            self.clocks[learner] -= 1
        return waiting

    def forget(self) -> None:
        """Nobody has finished before."""
        self._finishers.clear()

    def restart(self) -> None:
        """Everybody has taken z, and nobody waits."""
        self.clocks = [0] * self.learners
        self.waiting: set[int] = set()
        self._taken = [self.merges] * self.learners

    def arrive(self, learner: int) -> Merge | None:
        """The learner has done its local steps. What is merged now: None while a contribution to it is missing."""
        self.clocks[learner] += 1
        self.waiting.add(learner)
        contributors = self.rule.contributors(learner, self.learners)
        if not self.waiting.issuperset(contributors):
            return None
        staleness = 1 + self.merges - min(self._taken[each] for each in contributors)
        arrival = Arrival(learner, self.learners, len(contributors), staleness, tuple(self._finishers))
        dropped = self.rule.omega(arrival) == 0
        self._finishers.append(learner)
        self.merges += not dropped
        return Merge(contributors, arrival, dropped)

    def let_go(self) -> list[int]:
        """Those of the waiting who may start: they wait no longer, and are given z as it is now."""
        going = [i for i in sorted(self.waiting) if self.rule.may_start(self.clocks, self.waiting, i)]
        for learner in going:
            self._taken[learner] = self.merges
        self.waiting.difference_update(going)
        if self.rule.restarts_together and len(going) == self.learners:
            self.clocks = [0] * self.learners
        return going


class Masses:
    """The masses of the learners under a rule without a base model, and of what is on its way to each."""

    def __init__(self, learners: int) -> None:
        self.own = [1 / learners] * learners
        self.coming = [0.0] * learners

    def receive(self, learner: int) -> tuple[float, float]:
        """The learner takes what has come for it: its mass before, and that of what it takes."""
        before, received = self.own[learner], self.coming[learner]
        self.own[learner], self.coming[learner] = before + received, 0.0
        return before, received

    def send(self, learner: int, peer: int, part: float) -> tuple[float, float]:
        """So much of the learner's mass goes to a peer: the mass that was on its way to it before, and that sent."""
        sent, before = part * self.own[learner], self.coming[peer]
        self.own[learner] -= sent
        self.coming[peer] = before + sent
        return before, sent

    @property
    def mean(self) -> Update:
        """`base` ← the mean by mass of all `weights` (weights0, …) and of what is on its way (received0, …)."""
        return Update((("base", {**total("weights", self.own), **total("received", self.coming)}),))


def left_out(probability: float, variables: int, learner: int, draw: int, seed: int) -> list[bool]:
    """Which variables are left out of a merge (SpeeDO's --skip), as a function of the seed, the learner whose
    contribution came last, and the number of the draw: those of its contributions that were merged before, counted from
    the tick with which the rule began."""
    generator = np.random.Philox(key=np.array([seed % 2**64, 2**32 + learner], np.uint64), counter=draw << 64)
    return [int(drawn) < int(probability * 2**64) for drawn in generator.random_raw(variables)]


def check_skip(probability: float, rule: Rule, solver: SolverConf) -> None:
    """Refuse to leave variables out where that has no meaning. Raises ConfigurationError."""
    if not probability:
        return
    if not isinstance(rule, FreeRule) or not rule.skips:
        raise ConfigurationError(
            "skip must be 0 under a rule whose learners do not add to z and go on with it. "
            f"Received: skip={probability}, rule={rule}"
        )
    if rule.sends_gradient and solver.clip_gradient_norm is not None:
        raise ConfigurationError(
            "skip must be 0 where gradients that are sent are clipped by their norm as a whole. "
            f"Received: skip={probability}, rule={rule}"
        )


def check_local_variables(given: Collection[object], rule: Rule) -> None:
    """Refuse to let learners keep variables to themselves where that has no meaning. Raises ConfigurationError."""
    if given and (rule.reads_base or rule.sends_gradient):
        raise ConfigurationError(
            "local_variables must be () under a rule by which learners send gradients, without a step of their own. "
            f"Received: local_variables={given}, rule={rule}"
        )


def of_all(update: Update, contributors: int) -> Update:
    """A merge of several contributions at once: their gradients (gradient0, …) in place of `gradient`."""
    return update.expand("gradient", total("gradient", [1.0] * contributors)) if contributors > 1 else update
