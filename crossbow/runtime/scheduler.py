"""The scheduler, which decides when tasks begin. It runs on the caller's thread, and never waits for a tick to end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from crossbow.cluster.placement import Placement
from crossbow.data.loader import Loader
from crossbow.runtime.clock import WorkClock
from crossbow.runtime.coordination import Coordination
from crossbow.runtime.flow import TASKS_AHEAD, Flow, OnResult, ignore_result
from crossbow.runtime.position import Position
from crossbow.runtime.recovery import Recovery
from crossbow.runtime.results import AnyDecision
from crossbow.runtime.task import Task
from crossbow.solver import Schedule

TICKS_BEHIND = TASKS_AHEAD + 1
"""Maximum number of ticks by which results lag when a tick begins. The usual lag is smaller, so this limit costs no
time."""
SECONDS_TO_FINISH = 10.0
"""Seconds for which a tick may continue after a request to stop. A longer tick is undone."""


def tasks_behind(clock: WorkClock) -> int:
    """Maximum number of earlier tasks whose results are not known when a tick of z begins. With two levels, it is 0,
    because the previous tick has waited for all results."""
    return 0 if clock.host_ticks is not None else TICKS_BEHIND * clock.tasks_per_tick


def _never() -> bool:
    return False


def _ignore_decision(decision: AnyDecision) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Callbacks:
    """Functions that training calls, on the scheduler's thread."""

    on_result: OnResult = ignore_result
    """Receives the results: in task order under a rule with a barrier, otherwise as they arrive."""
    stop: Callable[[], bool] = _never
    """Whether to stop. Called at tick boundaries and, if a tick has several tasks per learner, between them."""
    pause: Callable[[], bool] = _never
    """Whether to stop at this tick boundary."""
    on_decision: Callable[[AnyDecision], None] = _ignore_decision
    """Receives decisions about the learners."""
    leaves_ticks: bool = True
    """Whether `stop` may abandon a tick that takes long."""


class Scheduler:
    """Submits the tasks of ticks, and of tests, to the learners."""

    def __init__(
        self,
        clock: WorkClock,
        coordination: Coordination,
        flow: Flow,
        recovery: Recovery,
        position: Position,
        schedule: Schedule,
        placement: Placement,
    ) -> None:
        """placement: the learners of this rank. Only these get their tasks from this scheduler."""
        self._placement = placement
        self._coordination, self._flow, self._recovery, self._position = coordination, flow, recovery, position
        self._clock, self._schedule = clock, schedule
        self._by_merges = schedule.solver.learning_rate_step_unit == "merges"
        self._behind = tasks_behind(clock)
        self._counted_merges = 0
        """Merges since the start: all merges up to the last time when no task was running, and those reported by
        results that all ranks know."""
        self._restarts = 0
        """Number of restarts that the schedule has requested up to the last tick."""
        self._given = 0
        """Number of tasks in this call of `train`, except skipped ones. Without a barrier, they rotate over the
        learners of all ranks."""
        self._last_rate: float | None = None

    @property
    def position(self) -> Position:
        """The progress of training."""
        return self._position

    @property
    def merges(self) -> int:
        """Number of updates of z since the start."""
        return self._coordination.merges(self._position.tick) + self._position.merges_before

    @property
    def time(self) -> int:
        """Time of the next tick, as the schedule counts it: tasks, or merges. Across ranks without a barrier, merges
        are counted `TICKS_BEHIND` ticks late, so that all ranks count alike."""
        if not self._by_merges:
            return self._position.tasks
        if not self._coordination.counts_in_results:
            return self.merges
        self._counted_merges += self._flow.take_merges(self._position.tasks - self._behind)
        return self._counted_merges

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next tick."""
        return self._schedule(self.time).rate

    @property
    def last_learning_rate(self) -> float:
        """The learning rate of the last tick; before the first tick, that of the next one."""
        return self.learning_rate if self._last_rate is None else self._last_rate

    @property
    def restarts(self) -> int:
        """Number of restarts that the schedule has requested up to the last tick."""
        return self._restarts

    def restore(self, restarts: int) -> None:
        """Continue after this number of restarts."""
        self._restarts = restarts

    def train(self, until: int, loader: Loader, callbacks: Callbacks) -> None:
        """Run ticks until the given number of tasks is done; see `Engine.run`."""
        flow, position, stop = self._flow, self._position, callbacks.stop
        self._given = 0
        self._count_merges()
        while position.tasks < until and not stop() and not callbacks.pause():
            if not self._run_tick_of_z(loader, callbacks):
                break
            flow.collect_until(position.tasks - self._behind)
        flow.collect_all()
        self._coordination.settle()

    def _run_tick_of_z(self, loader: Loader, callbacks: Callbacks) -> bool:
        """Submit a tick of z: with two levels, ticks of the host, and the exchange. Returns False if it was
        abandoned."""
        position, host_ticks = self._position, self._clock.host_ticks
        if host_ticks is None:
            return self.run_tick(loader, callbacks)
        for _ in range(host_ticks):
            if not self.run_tick(loader, callbacks):
                return False
        self._drain()
        exchanges = position.ticks_of_phase // host_ticks - 1
        self._coordination.exchange_hosts(self._schedule(self.time, exchanges), position.tick)
        position.end_tick_of_z()
        return True

    def run_tick(self, loader: Loader, callbacks: Callbacks) -> bool:
        """Submit a tick; with two levels, a tick of the host. Returns False if it was abandoned."""
        coordination, flow, position = self._coordination, self._flow, self._position
        leaves = callbacks.leaves_ticks and self._clock.host_ticks is None
        first, tick, now, deadline = position.tasks, position.tick, self.time, math.inf
        pace = self._schedule(now, position.ticks_of_phase)
        coefficients = coordination.coefficients(pace)
        before, self._restarts = self._restarts, self._schedule.restarts(now)
        if tick and self._restarts > before:
            self._start_again()
        decision = coordination.adapt(pace, self._drain)
        if decision is not None:
            callbacks.on_decision(decision)
        coordination.begin_tick()
        for number, purpose, learner in self._clock.schedule(first):
            # Before a learner's last task, no learner has contributed to the merge or begun to wait.
            if leaves and number > first and purpose != "synchronise" and callbacks.stop():
                deadline = min(deadline, time.monotonic() + SECONDS_TO_FINISH)
                if time.monotonic() >= deadline:
                    self._start_again()
                    return False
            if flow.skip(number):
                continue
            if learner is None and not self._placement.whole:
                learner = self._given % self._placement.learners
            self._given += 1
            if learner is not None and not self._placement.has(learner):
                flow.expect()
                continue
            slot, examples = flow.next_batch(loader)
            coordination.submit(Task(purpose, number, tick, slot, examples, pace, coefficients), learner)
        coordination.end_tick(Task("synchronise", first, tick, 0, 0, pace, coefficients))
        position.advance()
        self._last_rate = pace.rate
        return True

    def test(self, batches: int, loader: Loader) -> None:
        """Submit the batches of the check set to the learners, in rotation, and wait for their results."""
        coordination, flow, tick = self._coordination, self._flow, self._position.tick
        pace, placement = self._schedule(self._position.tasks), self._placement
        coefficients = coordination.coefficients(pace)
        for batch in range(batches):
            learner = batch % placement.learners
            if not placement.has(learner):
                flow.expect()
                continue
            slot, examples = flow.next_batch(loader)
            task = Task("check", batch, tick, slot, examples, pace, coefficients)
            coordination.learners[learner - placement.first].submit(task)
        flow.collect_all()

    def _drain(self) -> None:
        """Wait until no task is running, and z is complete."""
        self._flow.collect_all()
        self._coordination.settle()
        self._count_merges()

    def _count_merges(self) -> None:
        """Count the merges while no task is running."""
        self._counted_merges = self.merges
        self._flow.forget_merges()

    def _start_again(self) -> None:
        """Restart all learners from z; with two levels, from the z_h of their host."""
        self._drain()
        self._recovery.restart_learners()
