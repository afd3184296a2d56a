"""The server of z, or of a part of it: it merges the contributions of learners, and replies."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from crossbow.clock import now
from crossbow.runtime.backend import Combination
from crossbow.runtime.participants import Participants
from crossbow.solver import Pace, SolverConf, Update
from crossbow.synch import FreeRule
from crossbow.synch.progress import ExchangeState, left_out, of_all
from crossbow.synch.rule import Arrival
from crossbow.types import Array

COUNTERS = ("step_count", "base_step_count")
"""Vectors that are not divided like z."""


class Server:
    """z or a part of it, and the rule's state. The results depend only on the order of arrivals, so several servers
    with the same order have consistent results."""

    def __init__(
        self,
        participants: Participants,
        rule: FreeRule,
        solver: SolverConf,
        variables: Sequence[slice] = (),
        *,
        skip: float = 0.0,
        seed: int = 0,
    ) -> None:
        """skip: the probability that a merge leaves out a variable. variables: the range of each variable in z."""
        self._participants, self._solver, self._skip, self._seed = participants, solver, skip, seed
        self._learners = participants.learners
        self._draws = [0] * self._learners
        """Number of each learner's next random draw in a merge."""
        base = participants.base
        self.part = participants.part or slice(0, base.buffers[0].size)
        self._places = [_within(self.part, each) for each in variables] if skip else [self.part]
        first, mirrors = participants.first, [mirror.vectors() for mirror in participants.mirrors]
        own = [self._cut(replica.vectors()) for replica in participants.replicas]
        self._vectors = [*mirrors[:first], *own, *mirrors[first:]]
        """The vectors of each learner."""
        self._base = self._cut(base.vectors(0))
        self._clips = solver.clip_gradient_norm is not None and rule.sends_gradient
        self.progress = ExchangeState(rule, self._learners)
        self._set_rule(rule)
        self._replies = [self._reply(vectors) for vectors in self._vectors]
        self._lock, nobody = threading.Lock(), contextlib.nullcontext()
        self._merging: AbstractContextManager[object] = self._lock if rule.locks else nobody
        """Held while z changes."""
        self._counting: AbstractContextManager[object] = nobody if rule.locks else self._lock
        """Held while counters change."""

    def _cut(self, vectors: Mapping[str, Array]) -> dict[str, Array]:
        """The server's part of vectors."""
        return {name: each if name in COUNTERS else each[self.part] for name, each in vectors.items()}

    def sent(self, learner: int) -> Array:
        """The vector that stores the learner's contribution."""
        return self._vectors[learner]["gradient" if self.rule.sends_gradient else "weights"]

    def replied(self, learner: int) -> Array:
        """The vector with which the learner continues: its weights or, if it reads z itself, z."""
        return self._vectors[learner].get("weights", self._base["base"])

    def _set_rule(self, rule: FreeRule) -> None:
        self.rule = rule
        self._merges = [self._merge(learner) for learner in range(self._learners)]

    def follow(self, rule: FreeRule) -> list[int]:
        """Continue with another rule of the same class. Returns the learners that waited, in order; they must arrive
        once more, before any other learner arrives."""
        waiting = self.progress.follow(rule)
        self._set_rule(rule)
        return waiting

    def begin(self, tick: int) -> None:
        """Begin at this tick, with random draws that differ from those of earlier ticks."""
        self._draws = [tick] * self._learners
        self.progress.forget()

    def state(self) -> dict[str, Any]:
        """The state on which the next arrivals depend, except vectors, as JSON values."""
        return {"draws": self._draws, "progress": self.progress.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same rule."""
        self._draws = list(state["draws"])
        self.progress.restore(state["progress"])

    def arrivals(self) -> tuple[int, int, int]:
        """See `Exchange.arrivals`."""
        return self.progress.arrivals, self.progress.dropped, self.progress.staleness

    def arrive(self, learner: int, pace: Pace) -> list[int]:
        """Merge the learner's contribution, and reply to those that may continue. Returns them."""
        with self._merging:
            begin = now()
            with self._counting:
                merge = self.progress.arrive(learner)
            if merge is not None and not merge.dropped:
                for combination in self._not_left_out(learner):
                    combination.run(pace, merge.arrival)
            going = self._reply_to_waiting(pace)
            self._participants.record(learner, begin, going)
        return going

    def rest(self, learner: int) -> list[int]:
        """Let no learner wait for this one, which has no task. Returns the learners that may continue."""
        with self._merging:
            self.progress.rest(learner)
            return self._reply_to_waiting(Pace(0.0, 0.0))  # replies of rules that drift do not depend on the pace

    def _reply_to_waiting(self, pace: Pace) -> list[int]:
        """Give z to the learners that may continue. Returns them."""
        with self._counting:
            going = self.progress.let_go()
        for each in going:
            self._replies[each].run(pace, None)
        return going

    def _not_left_out(self, learner: int) -> Sequence[Combination[Arrival]]:
        combinations, number = self._merges[learner], self._draws[learner]
        self._draws[learner] += 1
        if not self._skip:
            return combinations
        omitted = left_out(self._skip, len(combinations), learner, number, self._seed)
        return [combination for combination, out in zip(combinations, omitted, strict=True) if not out]

    def _merge(self, learner: int) -> list[Combination[Arrival]]:
        """The updates of z at the learner's arrival, range by range."""
        rule, solver = self.rule, self._solver
        group = rule.contributors(learner, self._learners)

        def at(pace: Pace, arrival: Arrival) -> Update:
            return of_all(rule.merge(solver, pace, arrival), len(group))

        gradients = {f"gradient{n}": self._vectors[each]["gradient"] for n, each in enumerate(group)}
        names = tuple(gradients) if len(group) > 1 else ("gradient",)
        clipped = {name: 1 / len(group) for name in names} if self._clips else None
        vectors = {**self._base, **self._vectors[learner], **gradients}
        some, start, bind = Arrival(learner, self._learners, len(group)), self.part.start, self._participants.bind
        return [bind("merge", at, some, vectors, clipped, place, start) for place in self._places]

    def _reply(self, vectors: Mapping[str, Array]) -> Combination[None]:
        def at(pace: Pace, _: None) -> Update:
            return self.rule.reply(self._solver, pace)

        used = {**self._base, **vectors}
        return self._participants.bind("reply", at, None, used, place=self.part, start=self.part.start)


def _within(part: slice, variable: slice) -> slice:
    """The intersection of two ranges."""
    start = max(part.start, variable.start)
    return slice(start, max(start, min(part.stop, variable.stop)))
