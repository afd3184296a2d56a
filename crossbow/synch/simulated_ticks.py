"""Simulation of learners under a rule with a barrier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from crossbow.solver import Pace, Update
from crossbow.synch.arguments import Vector
from crossbow.synch.rule import MEAN, BarrierRule
from crossbow.synch.simulation import SimulatedState, Simulation


class BarrierSimulation(Simulation):
    """Simulation of a rule with a barrier: a tick ends when the contributions of all learners have reached z. The
    learners begin the next tick when the reply has reached them.

    If a learner is lost, the tick begins again: the others restart from z, and share the tick's tasks. A learner joins
    at the end of a tick, or when all others have been lost.
    """

    rule: BarrierRule

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.base["base_next"] = self.base["base"].copy()
        self.sent: dict[int, Vector] = {}
        self.joining: list[int] = []

    def set_members(self, members: Iterable[int]) -> None:
        super().set_members(members)
        self.steps_at = lru_cache(maxsize=16)(self._steps_at)  # learners of a tick share these

    def next_task(self, learner: int) -> int | None:
        task = self.first_task + self.steps[learner] * self.learners + self.position[learner]
        return task if task < self.number_of_tasks else None

    def pace(self, learner: int) -> Pace:
        return self.pace_at(self.merges if self.by_merges else self.first_task, self.tick)

    def finish(self, learner: int) -> None:
        rule, own, pace = self.rule, self.own[learner], self.pace(learner)
        synchronises = self.exchanges(learner)
        before = own[rule.sent_vector].copy() if synchronises and rule.sends != "new weights" else None
        steps = self.steps_at(pace, self.learners)
        self.apply(steps[synchronises], {**self.base, **own}, local=steps[False])
        if not synchronises:
            self.start(learner)
            return
        self.staleness[-1] = 1
        self.send(learner, partial(self._arrive, learner, own["weights"].copy() if before is None else before))

    def _steps_at(self, pace: Pace, learners: int) -> Mapping[bool, Update]:
        """The local step that synchronises (True), and the others (False)."""
        return {s: self.rule.local_step(self.solver, pace, learners, synchronises=s) for s in (True, False)}

    def _arrive(self, learner: int, sent: Vector) -> None:
        self.sent[learner] = sent
        if len(self.sent) == self.learners:
            self._end_tick(self.pace(learner))

    def _end_tick(self, pace: Pace) -> None:
        base = self.base
        mean = sum((self.sent[i] / self.learners for i in self.members), np.zeros_like(base["base"]))
        if self.rule.sends_gradient:
            mean *= self.clip(mean)
        base["base_previous"] = base["base_next"]  # one memory, as in the engine
        self.apply(self.rule.merge(self.solver, pace, self.learners), {**base, "mean": mean}, local=MEAN)
        reply = self.rule.reply(self.solver, pace, self.learners)
        if reply.steps:
            for learner in self.members:
                self.apply(reply, {**base, **self.own[learner]})
            self.moved.update(self.members)
        base["base"], base["base_next"] = base["base_next"], base["base"]
        if self.rule.reads_base:
            for own in self.own:
                own["weights"] = base["base"]
        self.keep_base()
        self.sent.clear()
        self.advance()
        self.begin_tick()

    def advance(self) -> None:
        """Count the tick. Restart the learners if the schedule steps down, and add the learners that wait to join."""
        last = self.first_task
        self.first_task += self.tasks_per_tick
        self.tick += 1
        before, now = (self.merges - 1, self.merges) if self.by_merges else (last, self.first_task)
        if self.schedule.restarts(now) > self.schedule.restarts(before):
            self.restart()
        self.let_join()

    def let_join(self) -> None:
        """Add the learners that wait to join."""
        for learner in self.joining:
            self.add_member(learner)
        self.joining.clear()

    def begin_tick(self) -> None:
        for learner in self.members:
            self.steps[learner] = 0
            self.start(learner, self.delay)

    @property
    def ends(self) -> bool:
        return self.first_task >= self.number_of_tasks

    @property
    def end(self) -> SimulatedState:
        return SimulatedState(
            self.base["base"], self.members, self.first_task, self.place.tick + self.tick, self.merges
        )

    def restart(self) -> None:
        super().restart()
        self.base["base_next"][...] = self.base["base"]

    def leave(self, learner: int) -> None:
        if learner in self.joining:
            self.joining.remove(learner)
            return
        if self.learners == 1:  # the tick would never end
            self.let_join()
        self.void_messages(self.members)
        self.running.clear()
        self.drop_member(learner)
        self.sent.clear()
        self.restart()
        self.begin_tick()

    def join(self, learner: int) -> None:
        self.joining.append(learner)
