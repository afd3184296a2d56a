"""Coordination without a barrier: the next batch goes to the next learner that is free.

Tasks wait in one queue. Two kinds of threads assign them: the scheduler's thread, which fills the queue, and the thread
of a learner that has just finished and so has freed itself or other learners. The result of training depends on the
order in which learners finish, and so on timing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Backend, Learner
from crossbow.runtime.coefficients import Formula, Formulas
from crossbow.runtime.exchange import BaseExchange, Exchange, Participants, PeerExchange
from crossbow.runtime.reports import Reports
from crossbow.runtime.results import AnyDecision
from crossbow.runtime.setting import RunSetting
from crossbow.runtime.speeds import Regrouping, Speeds
from crossbow.runtime.task import Completed, Failed, Task
from crossbow.solver import Pace
from crossbow.synch import FreeRule, Grouping, PeerRule, Rule
from crossbow.types import Array


class FreeCoordination:
    """Learners that synchronise in an exchange, without a barrier."""

    in_order = False

    def __init__(self, assembly: Assembly, backend: Backend, reports: Reports) -> None:
        setting = assembly.setting
        self.rule: Rule = setting.rule
        self._given_rule, self._reports = setting.given_rule, reports
        self._slack, self._tasks_per_tick = setting.model.slack, setting.clock.tasks_per_tick
        self._flags = assembly.flags
        self._dealing = threading.Lock()
        self._waiting: deque[Task] = deque()
        """Tasks, with their batches, that no learner has begun."""
        self._unfinished: dict[int, int] = {}
        """The tick of each task that waits or runs, by the task's number."""
        self._formulas = step_formulas(setting, assembly.arithmetic.ranges.multipliers)
        meeting = backend.meeting(assembly)
        participants = Participants(
            assembly.bases[0], assembly.replicas, assembly.arithmetic, meeting, setting.recorder
        )
        self.exchange = backend.call(lambda: new_exchange(setting, participants, assembly.variables()))
        self.learners: list[Learner] = [
            backend.exchanging(assembly, self._formulas, number, self._report, self.exchange.finished)
            for number in range(setting.learners)
        ]
        automatic = isinstance(self._given_rule, Grouping) and self._given_rule.groups is None
        measures = backend.times_tasks and automatic and setting.learners > 1
        self._speeds = Speeds(setting.learners) if measures else None

    def coefficients(self, pace: Pace) -> Array:
        """Coefficients of the learners' own steps at this pace."""
        return self._formulas.at(pace)

    def submit(self, task: Task, learner: int | None) -> None:
        """Give the task to the next free learner."""
        with self._dealing:
            self._unfinished[task.number] = task.tick
            self._waiting.append(task)
        self._deal()

    def end_tick(self, task: Task) -> None:
        """Do nothing: this coordination has no ticks to end."""

    def exchange_hosts(self, pace: Pace, tick: int) -> None:
        """Do nothing: there is one level."""

    def _deal(self) -> None:
        """Assign the tasks that can begin, in order. Any thread may call it."""
        free = self.exchange.free
        with self._dealing:
            while self._waiting and free and self._within_slack(self._waiting[0].tick):
                task = self._waiting.popleft()
                self.learners[free.popleft()].submit(task)

    def _within_slack(self, tick: int) -> bool:
        """Whether a tick is within the slack of the oldest tick with an unfinished task."""
        return self._slack is None or tick - min(self._unfinished.values()) <= self._slack

    def _report(self, report: Completed | Failed) -> None:
        """Handle a learner's report. Called on the learners' threads."""
        if isinstance(report, Completed):
            with self._dealing:
                self._unfinished.pop(report.task, None)
            self._deal()
        self._reports.put(report)

    # Learners that are grouped by their speed

    def observe(self, result: Completed) -> None:
        """Record the duration of a training task."""
        if self._speeds is not None and result.seconds is not None:
            self._speeds.add(result.learner, result.seconds)

    def adapt(self, pace: Pace, drain: Callable[[], None]) -> AnyDecision | None:
        """Regroup the learners by their measured speeds, if these have changed."""
        speeds = None if self._speeds is None else self._speeds.news()
        if speeds is None:
            return None
        drain()
        return self.regroup(speeds, pace)

    def regroup(self, speeds: Sequence[float], pace: Pace) -> Regrouping:
        """Regroup the learners by these speeds. No task may be running."""
        assert isinstance(self._given_rule, Grouping)
        rule = self._given_rule.settled(speeds)
        assert isinstance(rule.groups, tuple)
        assert isinstance(self.exchange, BaseExchange)
        self.exchange.follow(rule, pace)
        self.rule = rule
        return Regrouping(rule.groups, tuple(speeds))

    # When nothing is running

    def settle(self) -> None:
        """Compute z's statistics, and the parts of z that no exchange computes."""
        self.exchange.settle()

    def abandon(self) -> None:
        """Discard the waiting tasks."""
        with self._dealing:
            self._waiting.clear()
            self._unfinished.clear()

    def restart(self, tick: int) -> None:
        """Let all learners begin: they have copied z."""
        self._flags.reset(tick)
        self.exchange.restart()

    def begin(self, tick: int) -> None:
        """Start afresh at this tick."""
        self.exchange.begin(tick)

    def state(self) -> dict[str, Any]:
        """The exchange's state, and groups that were formed by speed with the measurements."""
        state: dict[str, Any] = {"exchange": self.exchange.state()}
        if self._speeds is not None:
            assert isinstance(self.rule, Grouping)
            state |= {"groups": self.rule.groups, "speeds": self._speeds.state()}
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        if self._speeds is not None:
            assert isinstance(self._given_rule, Grouping)
            assert isinstance(self.exchange, BaseExchange)
            groups = tuple(tuple(group) for group in state["groups"])
            self.rule = rule = replace(self._given_rule, groups=groups)
            self.exchange.follow(rule, Pace(0.0, 0.0))  # no learner waits yet, so that nothing is merged
            self._speeds.restore(state["speeds"])
        self.exchange.restore(state["exchange"])

    def merges(self, tick: int) -> int:
        """The number of merges, which the exchange counts."""
        return self.exchange.merges

    def arrivals(self) -> tuple[int, int, int] | None:
        """What the exchange has counted, if learners contribute to a base model."""
        if not isinstance(self.exchange, BaseExchange):
            return None
        progress = self.exchange.progress
        return progress.arrivals, progress.dropped, progress.staleness

    def whole_ticks(self, tasks: int) -> int:
        """The number of whole ticks that these tasks fill."""
        return tasks // self._tasks_per_tick

    def members(self) -> list[Learner]:
        """The learners: they alone take tasks."""
        return list(self.learners)


def step_formulas(setting: RunSetting, multipliers: Sequence[float]) -> Formulas:
    """A learner's own step, "step"."""
    rule, solver = setting.rule, setting.solver
    assert isinstance(rule, FreeRule | PeerRule)
    return Formulas({"step": Formula(lambda pace, _: rule.local_step(solver, pace), None, multipliers)})


def new_exchange(setting: RunSetting, participants: Participants, variables: Sequence[slice]) -> Exchange:
    """Return the rule's exchange. variables: the range of each in a vector."""
    rule, seed = setting.rule, setting.system.seed
    if isinstance(rule, FreeRule):
        return BaseExchange(participants, rule, setting.solver, variables, skip=setting.model.skip, seed=seed)
    assert isinstance(rule, PeerRule)
    return PeerExchange(participants, rule, seed=seed)
