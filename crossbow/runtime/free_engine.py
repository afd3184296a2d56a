"""The engine under a rule without a barrier: the next batch goes to the next learner that is free.

Tasks wait in one queue. Whoever makes it possible to begin one hands it out: the scheduler's thread, which fills the
queue, or that of a learner which has just finished, and so let itself or others go on.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crossbow.runtime.engine import SECONDS_TO_FINISH, Engine, OnResult
from crossbow.runtime.free_assembly import FreeAssembly
from crossbow.runtime.learner import Completed, Failed
from crossbow.runtime.speeds import Regrouping, Speeds
from crossbow.solver import Pace


@dataclass(frozen=True)
class _Waiting:
    """A task with its batch, that no learner has begun."""

    task: int
    tick: int
    slot: int
    examples: int
    pace: Pace


class FreeEngine(Engine):
    """Trains, tests and predicts; see `Engine`. Results are handed on as they come.

    What comes of training depends on the order in which learners finish, and so on timing. A tick that is left (see
    `Engine.run`) is not undone: the learners start again from z as it is then.
    """

    parts: FreeAssembly

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._dealing = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._unfinished: set[int] = set()
        """The tasks that are waiting or under way."""
        self._last_time = 0
        """When the last tick began, as the schedule has it."""
        self._done = 0
        """Training tasks whose results were handed on, since the start."""
        super().__init__(*arguments, **options)
        self._speeds = Speeds(self.parts.learners) if self.parts.groups_by_speed else None

    def _run_tick(self, stop: Callable[[], bool], on_result: OnResult) -> bool:
        first, count, now = self.tasks, self.clock.tasks_per_tick, self.time
        pace, restarts = self._pace(now), self.schedule.restarts
        if self.tick and restarts(now) > restarts(self._last_time):
            self._collect_all(on_result)
            self._settle()
            self.restart()
        self._last_time = now
        self._look_at_speeds(pace, on_result)
        deadline = math.inf
        for task in range(first, first + count):
            if task > first and stop():
                deadline = min(deadline, time.monotonic() + SECONDS_TO_FINISH)
                if time.monotonic() >= deadline:
                    self._collect_all(on_result)
                    self._settle()
                    self.restart()
                    return False
            slot, examples = self._next_batch(self.loader, on_result)
            with self._dealing:
                self._unfinished.add(task)
                self._waiting.append(_Waiting(task, self.tick, slot, examples, pace))
            self._deal()
        self.tick += 1
        return True

    def _look_at_speeds(self, pace: Pace, on_result: OnResult) -> None:
        """Between two ticks: go on with the groups of learners that are as fast as was measured."""
        speeds = None if self._speeds is None else self._speeds.news()
        if speeds is not None:
            self._collect_all(on_result)
            self._settle()
            self.on_decision(Regrouping(self.parts.regroup(speeds, pace), speeds))

    def _deal(self) -> None:
        """Hand out the tasks that can be begun, in order. Any thread."""
        free = self.parts.exchange.free
        with self._dealing:
            while self._waiting and free and self._within_slack(self._waiting[0].task):
                next_one, learner = self._waiting.popleft(), self.parts.members[free.popleft()].learner
                learner.submit(
                    ("train", 0),
                    task=next_one.task,
                    tick=next_one.tick,
                    slot=next_one.slot,
                    examples=next_one.examples,
                    pace=next_one.pace,
                    release=self.loader.release,
                    report=self._report,
                )

    def _within_slack(self, task: int) -> bool:
        """Whether the task's tick is not too far ahead of the oldest that is not done."""
        slack, per_tick, before = self.parts.model_conf.slack, self.clock.tasks_per_tick, self._tasks_before
        return slack is None or (task - before) // per_tick - (min(self._unfinished) - before) // per_tick <= slack

    def _report(self, report: Completed | Failed) -> None:
        if isinstance(report, Completed):
            with self._dealing:
                self._unfinished.discard(report.task)
            self._deal()
        super()._report(report)

    def _hand_on(self, report: Completed, on_result: OnResult) -> None:
        """At once: a slow learner's result must not keep back those of the others. Results are numbered as they come;
        those of tests, which say which batch they are of, are not."""
        if self._doing == "training":
            report = dataclasses.replace(report, task=self._next_result)
            self._done = self._next_result + 1
            if self._speeds is not None and report.seconds is not None:
                self._speeds.add(report.learner, report.seconds)
        self._next_result += 1
        on_result(report)

    @property
    def merges(self) -> int:
        return self.parts.exchange.merges + self._merges_before

    def continue_from(self, other: Engine) -> None:
        super().continue_from(other)
        self.parts.exchange.begin(self.tick)

    def _settle(self) -> None:
        self.parts.exchange.settle()

    def _recover(self) -> None:
        with self._dealing:
            self._waiting.clear()
            self._unfinished.clear()
        super()._recover()

    def _whole_ticks(self) -> int:
        return (self._done - self._tasks_before) // self.clock.tasks_per_tick

    def restart(self) -> None:
        """w_i ← z, and everybody may begin."""
        super().restart()
        self._done = self.tasks
        self.parts.exchange.restart()
