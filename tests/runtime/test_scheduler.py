"""When tasks are submitted: ticks in turn, restarts by the schedule, and ticks that are left."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf, TrainingUnit
from crossbow.cluster.placement import Placement
from crossbow.runtime import run, scheduler
from crossbow.runtime.clock import WorkClock
from crossbow.runtime.flow import ignore_result
from crossbow.runtime.position import Place, Position
from crossbow.runtime.reports import Reports
from crossbow.runtime.scheduler import Callbacks, Scheduler
from crossbow.solver import Schedule
from crossbow.synch import AsynchronousSGD
from tests.combinations import in_turn
from tests.runtime.fake_parts import FakeCoordination, FakeLoader, new_flow
from tests.runtime.test_engine import TICKS, assert_equal, base_model, logistic, simulate
from tests.support import SECONDS, Probe, context, new_calls, perceptron, same_weights, within


def test_a_policy_without_steps_never_restarts() -> None:
    solver = SolverConf(learning_rate=0.2, policy="inv", gamma=0.1, power=0.5, momentum=0.5, warmup_steps=7)
    rate = lambda task: 0.2 * (1 + 0.1 * task) ** -0.5 * (min((task + 1) / 7, 1) if task < 7 else 1)  # noqa: E731
    with logistic(rule=SMA(), solver=solver) as running:
        expected = simulate(running, 2, solver, rate=rate)
        running.train(TICKS * 2, TrainingUnit.TASKS)
        for _ in range(TICKS):
            expected.sma_tick(0.5, 1, 0.0)
        assert_equal(running, expected)
        assert running.engine.scheduler.learning_rate == pytest.approx(rate(40))


@pytest.mark.parametrize("rule", [SMA(tau=2), SSGD()], ids=str)
def test_a_schedule_by_merges_counts_ticks(rule: Any) -> None:
    """γ halves after every three, and the learners restart."""
    models = []
    for unit, size in (("merges", 3), ("tasks", 3 * 2 * rule.tau)):
        solver = SolverConf(
            learning_rate=0.2, policy="step", gamma=0.5, step_size=size, learning_rate_step_unit=unit, momentum=0.5
        )
        with logistic(rule=rule, solver=solver) as running:
            for tasks in (10 * rule.tau, 12 * rule.tau):
                running.train(tasks, TrainingUnit.TASKS)
            assert running.engine.scheduler.learning_rate == 0.2 / 8
            assert running.engine.merges == 11
            models.append(base_model(running))
    assert models[0].weights.tobytes() == models[1].weights.tobytes()


def test_a_tick_is_not_left_once_learners_may_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two learners, τ = 2: `stop` is asked before the tick, before its second task, and not before the last two, which
    synchronise. Asked again, before the next tick, it says yes; a tick that was left would have been undone."""
    monkeypatch.setattr(scheduler, "SECONDS_TO_FINISH", 0.0)
    asked = itertools.count(1)
    with logistic(rule=SMA(tau=2), learners=2) as running:
        within(SECONDS, lambda: running.engine.run(100, Callbacks(stop=lambda: next(asked) > 2)))
        assert running.engine.tasks == 4


def test_results_are_handed_on_while_ticks_run() -> None:
    """Ticks of one task, and four learners, which may have eight tasks at once: when a tick begins, results are behind
    by TICKS_BEHIND ticks at the most, though learners do nothing before so many tasks have been submitted."""
    submitted, results, behind = threading.Event(), list[int](), list[int]()

    def wait(where: str, learner: int, call: int) -> None:
        assert submitted.wait(SECONDS)

    with context(perceptron(Probe(action=wait)), rule=AsynchronousSGD(), learners=4, wpc=1) as running:

        def stop() -> bool:
            behind.append(running.engine.tasks - len(results))
            if running.engine.tasks == scheduler.TICKS_BEHIND:
                submitted.set()
            return False

        within(2 * SECONDS, lambda: running.engine.run(30, Callbacks(lambda result: results.append(result.task), stop)))
    assert max(behind) == scheduler.TICKS_BEHIND
    assert len(results) == 30


@pytest.mark.slow
@in_turn
@pytest.mark.parametrize(
    "model", [{"rule": SMA(tau=50_000)}, {"wpc": 10**9}, {"wpc": 10**9, "rule": SSGD()}, {"rule": SMA(tau=10**30)}]
)
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
def test_a_duration_ends_within_a_long_tick(
    devices: str, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "SECONDS_TO_FINISH", 0.1)
    with context(devices=devices, learners=2, solver=SolverConf(momentum=0.5), **model) as running:
        before, start = running.variables, time.perf_counter()
        history = within(SECONDS, lambda: running.train_for_duration(0.2))
        assert 0.3 <= time.perf_counter() - start < SECONDS
        # What was done is undone: the record says so, and how fast it went.
        assert history.stopped == "duration"
        (record,) = history.records
        assert record.tasks == record.epoch == running.engine.tasks == 0
        assert record.images_per_second > 0
        assert same_weights(running.variables, before)
        z = running.engine.parts.bases[0].current(0)
        for member in running.engine.members:
            assert member.replica.weights is None or np.array_equal(member.replica.weights, z)
            assert member.replica.velocity is None or not member.replica.velocity.any()
        assert running.test().examples == 13
        assert within(SECONDS, lambda: running.train_until_condition_or_for_duration(-1.0, 0.1)).stopped == "duration"


def test_a_tick_that_is_nearly_done_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the time is over is known in the middle of it; the rest does not take long."""
    passed = [0.0]

    def act(where: str, learner: int, call: int) -> None:
        passed[0] += call == 5

    new_calls()
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: passed[0]))
    monkeypatch.setattr(scheduler, "SECONDS_TO_FINISH", SECONDS)
    with context(perceptron(Probe(action=act)), learners=2, rule=SMA(tau=20)) as running:
        history = running.train_for_duration(0.5)
        assert history.stopped == "duration"
        assert running.engine.tasks == history.records[-1].tasks == 40


# With learners that are none


class FakeRecovery:
    """Notes restarts."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def restart_learners(self) -> None:
        self.log.append("restart")


class Parts:
    """A scheduler of two learners, τ = 2."""

    def __init__(self, solver: SolverConf | None = None, *, barrier: bool = True, restart: bool = True) -> None:
        reports = Reports(learners=2)
        self.coordination = FakeCoordination(reports, 2)
        self.log = self.coordination.log
        self.flow = new_flow(self.coordination, reports)
        self.position = Position(4)
        self.loader: Any = FakeLoader()
        schedule = Schedule(solver or SolverConf(learning_rate=0.5), 4.0, restart=restart)
        recovery: Any = FakeRecovery(self.log)
        clock = WorkClock(2, 2, barrier=barrier)
        placement = Placement.alone(2)
        self.scheduler = Scheduler(clock, self.coordination, self.flow, recovery, self.position, schedule, placement)

    def train(self, until: int, **callbacks: Any) -> None:
        with self.flow.handing_on("training", self.position.tasks, ignore_result):
            self.scheduler.train(until, self.loader, Callbacks(**callbacks))


def test_a_tick_is_its_tasks_and_its_end() -> None:
    parts = Parts()
    parts.train(8)
    first = [("local", 0, 0, 0), ("local", 1, 0, 1), ("synchronise", 2, 0, 0), ("synchronise", 3, 0, 1), ("end", 0, 0)]
    second = [("local", 4, 1, 0), ("local", 5, 1, 1), ("synchronise", 6, 1, 0), ("synchronise", 7, 1, 1), ("end", 4, 1)]
    assert parts.log == [*first, *second, "settle"]
    assert (parts.position.tasks, parts.scheduler.merges, parts.flow.done) == (8, 2, 8)


def test_a_task_has_its_batch_and_the_coefficients_of_its_tick() -> None:
    parts = Parts(SolverConf(learning_rate=0.5, policy="step", gamma=0.5, step_size=4, learning_rate_step_unit="tasks"))
    parts.train(8)
    tasks = parts.coordination.learners[1].tasks
    assert [(task.slot, task.examples, task.tick) for task in tasks] == [(1, 4, 0), (3, 4, 0), (5, 4, 1), (7, 4, 1)]
    assert [task.pace.rate for task in tasks] == [0.5, 0.5, 0.25, 0.25]
    assert [task.coefficients.tolist() for task in tasks] == [[0.5], [0.5], [0.25], [0.25]]
    assert parts.scheduler.learning_rate == 0.125


@pytest.mark.parametrize("restart", [True, False])
def test_learners_restart_where_the_rate_steps_down(restart: bool) -> None:
    """Before the first task of the tick, with nothing running; and not before the first tick."""
    solver = SolverConf(
        learning_rate=0.5,
        policy="step",
        gamma=0.5,
        step_size=4,
        learning_rate_step_unit="tasks",
    )
    parts = Parts(solver, restart=restart)
    parts.train(12)
    assert parts.log.count("restart") == (2 if restart else 0)
    if restart:
        place = parts.log.index("restart")
        assert parts.log[place - 2 : place] == [("end", 0, 0), "settle"]
        assert parts.log[place + 1] == ("local", 4, 1, 0)


def test_training_stops_between_ticks() -> None:
    parts = Parts()
    parts.train(100, stop=lambda: parts.position.tick == 3)
    assert parts.position.tasks == 12
    assert parts.log[-1] == "settle"


def test_training_pauses_at_a_tick() -> None:
    parts = Parts()
    parts.train(100, pause=lambda: parts.loader.count >= 5)
    assert (parts.position.tasks, parts.log[-1]) == (8, "settle")


def test_a_tick_is_left_only_before_its_last_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards, learners may wait for each other. A tick that is left is undone."""
    monkeypatch.setattr(scheduler, "SECONDS_TO_FINISH", 0.0)
    for asked, left in ((1, True), (2, False), (3, False)):
        parts = Parts()
        parts.train(100, stop=lambda parts=parts, asked=asked: parts.loader.count >= asked)
        assert ("restart" in parts.log) == left
        assert parts.position.tick == (0 if left else 1)
        assert ("end", 0, 0) not in parts.log or not left


def test_decisions_are_told() -> None:
    parts, told = Parts(), list[Any]()
    parts.coordination.decision = "groups"
    parts.train(4, on_decision=told.append)
    assert told == ["groups"]


def test_batches_of_a_test_go_to_all_learners_in_turn() -> None:
    parts, seen = Parts(), list[int]()
    parts.position.go_to(3)
    with parts.flow.handing_on("testing", 0, lambda result: seen.append(result.task)):
        parts.scheduler.test(5, parts.loader)
    first, second = parts.coordination.learners
    assert [task.number for task in first.tasks] == [0, 2, 4]
    assert [task.number for task in second.tasks] == [1, 3]
    assert {(task.purpose, task.tick) for task in first.tasks} == {("check", 3)}
    assert seen == [0, 1, 2, 3, 4]
    assert parts.position.tick == 3


def test_the_time_of_a_schedule_is_in_tasks_or_merges() -> None:
    for unit, time_ in (("tasks", 8), ("merges", 2)):
        parts = Parts(SolverConf(learning_rate_step_unit=unit))
        parts.train(8)
        assert parts.scheduler.time == time_
        parts.position.continue_from(Place(2, 2, parts.position.tasks), 7, 2)  # merges of an engine before
        assert parts.scheduler.merges == 7
        assert parts.scheduler.time == (8 if unit == "tasks" else 7)
