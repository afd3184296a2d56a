"""Coordination without a barrier: the next batch goes to the next learner that is free.

Tasks wait in one queue. Two kinds of threads assign them: the scheduler's thread, which fills the queue, and the thread
of a learner that has just finished and so has freed itself or other learners. The result of training depends on the
order in which learners finish, and so on timing.

Across ranks, tasks rotate over all learners, as under a rule with a barrier, so that no learner waits for another that
has no more tasks. A third thread assigns tasks when a message lets a learner continue.
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
from crossbow.runtime.copies import Copies
from crossbow.runtime.exchange import BaseExchange, Exchange, PeerExchange
from crossbow.runtime.participants import Participants
from crossbow.runtime.peers import RankPeerExchange
from crossbow.runtime.reports import Reports
from crossbow.runtime.results import AnyDecision
from crossbow.runtime.served import Link, ServedExchange
from crossbow.runtime.server import Server
from crossbow.runtime.setting import RunSetting
from crossbow.runtime.speeds import Regrouping, Speeds
from crossbow.runtime.task import Completed, Failed, Task
from crossbow.solver import Pace
from crossbow.synch import FreeRule, Grouping, PeerRule, Rule
from crossbow.types import Array


class FreeCoordination:
    """Learners that synchronise in an exchange, without a barrier."""

    def __init__(self, assembly: Assembly, backend: Backend, reports: Reports) -> None:
        setting = assembly.setting
        self._placement, self._divided = setting.placement, setting.ranks.several
        self._ready: set[int] = set()
        """Across ranks, the learners of this rank that may begin a task."""
        self._resting: set[int] = set()
        """The learners among these that have no task, as the exchange knows."""
        self._counts_merges = self._divided and setting.solver.learning_rate_step_unit == "merges"
        self._counted = 0
        """This rank's merges up to its last result."""
        self._awaits_results = False
        """Whether the scheduler waits for results before it submits more tasks."""
        self.rule: Rule = setting.rule
        self._given_rule, self._reports = setting.given_rule, reports
        self._slack, self._tasks_per_tick = setting.model.slack, setting.clock.tasks_per_tick
        self._flags = assembly.flags
        self._dealing = threading.Lock()
        self._waiting: deque[tuple[Task, int | None]] = deque()
        """Tasks that no learner has begun, and, across ranks, the learner of each."""
        self._unfinished: dict[int, int] = {}
        """The tick of each waiting or running task, by the task's number."""
        self._formulas = step_formulas(setting, assembly.arithmetic.ranges.multipliers)
        participants = Participants(
            assembly.bases[0],
            assembly.replicas,
            assembly.arithmetic,
            backend.meeting(assembly),
            setting.recorder,
            setting.learners,
            setting.placement.first,
            assembly.part,
            assembly.mirrors,
        )
        link = Link(setting.ranks, setting.placement, self._flags, backend, self._deal, self._fail)
        self.exchange = backend.call(lambda: new_exchange(setting, participants, assembly.variables(), link))
        self.learners: list[Learner] = [
            backend.exchanging(assembly, self._formulas, number, self._report, self.exchange.finished)
            for number in range(setting.placement.own)
        ]
        automatic = isinstance(self._given_rule, Grouping) and self._given_rule.groups is None
        measures = backend.times_tasks and automatic and setting.learners > 1 and not self._divided
        self._speeds = Speeds(setting.learners) if measures else None

    @property
    def in_order(self) -> bool:
        """True across ranks, so that all ranks count alike."""
        return self._divided

    @property
    def counts_in_results(self) -> bool:
        return self._counts_merges

    def coefficients(self, pace: Pace) -> Array:
        """Coefficients of the learners' own steps at this pace."""
        return self._formulas.at(pace)

    def begin_tick(self) -> None:
        """Exchange messages with other ranks. A server does so even if it has no task."""
        self.exchange.begin_session()

    def submit(self, task: Task, learner: int | None) -> None:
        """Give the task to the next free learner or, across ranks, to its own learner when that is free."""
        with self._dealing:
            self._awaits_results = False
            self._unfinished[task.number] = task.tick
            self._waiting.append((task, learner))
        self._deal()

    def await_results(self) -> None:
        """Across ranks, if learners may drift apart, tell the exchange which learners have no task. Otherwise other
        learners could wait for these, and the scheduler for the other learners."""
        self._awaits_results = True
        self._rest()

    def _rest(self) -> None:
        rule = self.rule
        if not (self._awaits_results and isinstance(rule, FreeRule) and rule.drifts):
            return
        with self._dealing:
            resting = sorted(self._ready - self._resting)
            self._resting.update(resting)
        for learner in resting:
            self.exchange.rest(learner)

    def end_tick(self, task: Task) -> None:
        """Do nothing: this coordination has no ticks to end."""

    def exchange_hosts(self, pace: Pace, tick: int) -> None:
        """Do nothing: there is one level."""

    def _deal(self) -> None:
        """Assign the tasks that can begin, in order. Any thread may call it."""
        with self._dealing:
            while (following := self._take_own() if self._divided else self._take()) is not None:
                task, learner = following
                self._resting.discard(learner)
                self.learners[learner].submit(task)
        self._rest()

    def _take(self) -> tuple[Task, int] | None:
        """The next task, and a free learner."""
        free = self.exchange.free
        if not (self._waiting and free and self._within_slack(self._waiting[0][0].tick)):
            return None
        return self._waiting.popleft()[0], free.popleft()

    def _take_own(self) -> tuple[Task, int] | None:
        """Across ranks, the next task that belongs to a free learner."""
        while self.exchange.free:
            self._ready.add(self.exchange.free.popleft())
        for place, (task, number) in enumerate(self._waiting):
            assert number is not None
            learner = number - self._placement.first
            if learner in self._ready:
                del self._waiting[place]
                self._ready.remove(learner)
                return task, learner
        return None

    def _fail(self, error: BaseException) -> None:
        """End all tasks because the exchange between ranks has failed. Called on its thread."""
        self._flags.raise_abort()
        with self._dealing:
            task = min(self._unfinished, default=0)
        self._reports.put(Failed(task, self._placement.learners, "exchange between ranks", error))

    def _within_slack(self, tick: int) -> bool:
        """Whether a tick is within the slack of the oldest tick with an unfinished task."""
        return self._slack is None or tick - min(self._unfinished.values()) <= self._slack

    def _report(self, report: Completed | Failed) -> None:
        """Handle a learner's report. Called on the learners' threads."""
        if isinstance(report, Completed):
            with self._dealing:
                self._unfinished.pop(report.task, None)
                if self._counts_merges:
                    before, self._counted = self._counted, self.exchange.own_merges
                    report = report._replace(merges=self._counted - before)
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
        self._counted = self.exchange.own_merges

    def keep_part(self) -> Copies:
        """After the loss of a rank, keep this rank's copies of z; see `Exchange.keep_part`."""
        return self.exchange.keep_part()

    def abandon(self) -> bool:
        """Discard the waiting tasks."""
        self.exchange.give_up()
        with self._dealing:
            self._waiting.clear()
            self._unfinished.clear()
        return True

    def restart(self, tick: int) -> None:
        """Let all learners begin: they have copied z."""
        self._flags.reset(tick)
        self._ready.clear()
        self._resting.clear()
        self.exchange.restart()
        self._counted = self.exchange.own_merges

    def begin(self, tick: int) -> None:
        """Begin at this tick."""
        self.exchange.begin(tick)

    def state(self) -> dict[str, Any]:
        """The exchange's state and, if groups are formed by speed, the groups and the measurements."""
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
        self._counted = self.exchange.own_merges

    def merges(self, tick: int) -> int:
        """The number of merges, which the exchange counts."""
        return self.exchange.merges

    def arrivals(self) -> tuple[int, int, int] | None:
        """The counts of the exchange, if learners contribute to a base model."""
        return self.exchange.arrivals()

    def whole_ticks(self, tasks: int) -> int:
        """The number of whole ticks that these tasks fill."""
        return tasks // self._tasks_per_tick

    def members(self) -> list[Learner]:
        """The learners, because only they execute tasks."""
        return list(self.learners)


def step_formulas(setting: RunSetting, multipliers: Sequence[float]) -> Formulas:
    """The formulas of a learner's own step, "step"."""
    rule, solver = setting.rule, setting.solver
    assert isinstance(rule, FreeRule | PeerRule)
    return Formulas({"step": Formula(lambda pace, _: rule.local_step(solver, pace), None, multipliers)})


def new_exchange(setting: RunSetting, participants: Participants, variables: Sequence[slice], link: Link) -> Exchange:
    """Return the rule's exchange. variables: the range of each variable in a vector. link: the connection to other
    ranks."""
    rule, solver, ranks = setting.rule, setting.solver, setting.ranks
    skip, seed = setting.model.skip, setting.system.seed
    if isinstance(rule, PeerRule):
        if not ranks.several:
            return PeerExchange(participants, rule, seed=seed)
        return RankPeerExchange(participants, rule, link, ranks.gather(setting.placement.first), seed=seed)
    assert isinstance(rule, FreeRule)
    server = Server(participants, rule, solver, variables, skip=skip, seed=seed) if setting.serves else None
    if ranks.several:
        return ServedExchange(participants, rule, link, setting.parts(participants.base.buffers[0].size), server)
    assert server is not None
    return BaseExchange(participants, server)
