"""Coordination without a barrier: the next batch goes to the next learner that is free.

Tasks wait in one queue. Whoever makes it possible to begin one hands it out: the scheduler's thread, which fills the
queue, or the thread of a learner that has just finished, and so let itself or others go on. What comes of training
depends on the order in which learners finish, and so on timing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

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
    """Learners that meet in an exchange."""

    in_order = False

    def __init__(self, assembly: Assembly, backend: Backend, reports: Reports) -> None:
        setting = assembly.setting
        self.rule: Rule = setting.rule
        self._given_rule, self._reports = setting.given_rule, reports
        self._slack, self._tasks_per_tick = setting.model.slack, setting.clock.tasks_per_tick
        self._flags = assembly.flags
        self._dealing = threading.Lock()
        self._waiting: deque[Task] = deque()
        """Tasks that no learner has begun, with their batches."""
        self._unfinished: dict[int, int] = {}
        """Tasks that are waiting or under way: the tick of each, by its number."""
        self._formulas = step_formulas(setting, assembly.arithmetic.ranges.multipliers)
        meeting = backend.meeting(assembly)
        participants = Participants(assembly.bases[0], assembly.replicas, assembly.arithmetic, meeting)
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
        """Let the next learner that is free begin the task."""
        with self._dealing:
            self._unfinished[task.number] = task.tick
            self._waiting.append(task)
        self._deal()

    def end_tick(self, task: Task) -> None:
        """A tick ends nothing here."""

    def _deal(self) -> None:
        """Hand out the tasks that can be begun, in order. Any thread."""
        free = self.exchange.free
        with self._dealing:
            while self._waiting and free and self._within_slack(self._waiting[0].tick):
                task = self._waiting.popleft()
                self.learners[free.popleft()].submit(task)

    def _within_slack(self, tick: int) -> bool:
        """Whether a tick is not too far ahead of the oldest that has a task which is not done."""
        return self._slack is None or tick - min(self._unfinished.values()) <= self._slack

    def _report(self, report: Completed | Failed) -> None:
        """On the learners' threads."""
        if isinstance(report, Completed):
            with self._dealing:
                self._unfinished.pop(report.task, None)
            self._deal()
        self._reports.put(report)

    # Learners that are grouped by their speed

    def observe(self, result: Completed) -> None:
        """Note how long a training task took."""
        if self._speeds is not None and result.seconds is not None:
            self._speeds.add(result.learner, result.seconds)

    def adapt(self, pace: Pace, drain: Callable[[], None]) -> AnyDecision | None:
        """Go on with the groups of learners that are as fast as was measured, where that is news."""
        speeds = None if self._speeds is None else self._speeds.news()
        if speeds is None:
            return None
        drain()
        return self.regroup(speeds, pace)

    def regroup(self, speeds: Sequence[float], pace: Pace) -> Regrouping:
        """Go on with the groups of learners of these speeds. Nothing may be running."""
        rule = self._given_rule.settled(speeds)
        assert isinstance(rule, Grouping)
        assert isinstance(rule.groups, tuple)
        assert isinstance(self.exchange, BaseExchange)
        self.exchange.follow(rule, pace)
        self.rule = rule
        return Regrouping(rule.groups, tuple(speeds))

    # When nothing is running

    def settle(self) -> None:
        """z's statistics, and what of z no exchange makes."""
        self.exchange.settle()

    def abandon(self) -> None:
        """Tasks that wait are never begun."""
        with self._dealing:
            self._waiting.clear()
            self._unfinished.clear()

    def restart(self, tick: int) -> None:
        """All learners have taken z, and may begin."""
        self._flags.reset(tick)
        self.exchange.restart()

    def begin(self, tick: int) -> None:
        """Go on at that tick as if nothing had been before."""
        self.exchange.begin(tick)

    def merges(self, tick: int) -> int:
        """Counted by the exchange."""
        return self.exchange.merges

    def whole_ticks(self, tasks: int) -> int:
        """As many as their tasks make."""
        return tasks // self._tasks_per_tick

    def members(self) -> list[Learner]:
        """The learners: nobody else takes tasks."""
        return list(self.learners)


def step_formulas(setting: RunSetting, multipliers: Sequence[float]) -> Formulas:
    """A learner's own step, "step"."""
    rule, solver = setting.rule, setting.solver
    assert isinstance(rule, FreeRule | PeerRule)
    return Formulas({"step": Formula(lambda pace, _: rule.local_step(solver, pace), None, multipliers)})


def new_exchange(setting: RunSetting, participants: Participants, variables: Sequence[slice]) -> Exchange:
    """The exchange of the rule. variables: where each lies in a vector."""
    rule, seed = setting.rule, setting.system.seed
    if isinstance(rule, FreeRule):
        return BaseExchange(participants, rule, setting.solver, variables, skip=setting.model.skip, seed=seed)
    assert isinstance(rule, PeerRule)
    return PeerExchange(participants, rule, seed=seed)
