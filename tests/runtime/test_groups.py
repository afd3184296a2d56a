"""Learners that are grouped by how fast they are, while training goes on.

`FreeEngine._look_at_speeds` may leave out to settle: without a GPU, and there are no groups on one, that makes z's
statistics only, which nobody looks at in training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from crossbow import SSGD, Dataset, ExecutionContext, Monitor, SolverConf, TrainingUnit
from crossbow.runtime import speeds
from crossbow.runtime.speeds import Regrouping
from crossbow.scripts.parser import Defaults, configurations, new_parser
from crossbow.synch import AsynchronousSGD, Grouping, RuleSequence
from tests.combinations import one_in
from tests.runtime import test_free as free
from tests.runtime.test_tuning import scripted
from tests.support import KERNELS, SECONDS, Probe, context, engine_of, perceptron, within

TASKS = TrainingUnit.TASKS


class Told:
    """Speeds that are told before these ticks: who calls it the n-th time is told those of n, if any."""

    def __init__(self, by_tick: dict[int, Sequence[float]]) -> None:
        self.by_tick, self.tick = by_tick, -1

    def add(self, learner: int, seconds: float) -> None:
        pass

    def news(self) -> tuple[float, ...] | None:
        self.tick += 1
        told = self.by_tick.get(self.tick)
        return None if told is None else tuple(told)


@pytest.mark.parametrize(
    ("told", "events", "merges"),
    [
        # 0 and 1 are a group, and merge at once. Then 2 does alone; and 0, which waits for 1, when all are alone.
        (
            {1: (2, 2, 1), 2: (4, 2, 1)},
            [0, 1, 2, 0, 1, 2],
            [([(0, 0), (1, 0)], 1), ([(2, 0)], 2), ([(3, 1)], 2), ([(4, 1)], 3), ([(5, 2)], 3)],
        ),
        # 0 and 2 are a group: 1 merges at once, 0 waits on.
        (
            {1: (2, 1, 2)},
            [0, 1, 2, 1, 0, 2],
            [([(1, 0)], 1), ([(0, 0), (2, 0)], 2), ([(3, 1)], 2), ([(4, 2), (5, 2)], 2)],
        ),
        # The same group: both wait on.
        ({1: (1, 1, 1)}, [0, 1, 2, 0, 1, 2], [([(0, 0), (1, 0), (2, 0)], 1), ([(3, 1), (4, 1), (5, 1)], 1)]),
    ],
    ids=["both go on", "one goes on", "nobody goes on"],
)
def test_nothing_is_lost_when_groups_change(
    told: dict[int, Sequence[float]], events: list[int], merges: list[tuple[list[tuple[int, int]], int]]
) -> None:
    """Three learners in one group do two tasks, a tick, and wait for the third; then there are other groups.

    merges: the tasks of each, with the number of merges behind which its learner took z, and its staleness. By hand,
    with z's own velocity: v ← ½ v − γ Σ g / (n Y), z ← z + v.
    """
    trajectory, velocity = [np.full(free.FEATURES, free.START)], np.zeros(free.FEATURES)
    for tasks, staleness in merges:
        total = sum(free.gradient(trajectory[taken], 0, task) for task, taken in tasks)
        velocity = 0.5 * velocity - 0.1 * total / (len(tasks) * staleness)
        trajectory.append(trajectory[-1] + velocity)
    order = free.InOrder(events)
    with context(
        free.linear(Probe(action=order.wait)), data=Dataset((free.rows, free.targets)), rule=Grouping(), learners=3,
        batch_size=1, solver=SolverConf(learning_rate=0.1, momentum=0.5), precision="float64", seed=free.SEED, wpc=2,
    ) as running:  # fmt: skip
        engine = running.engine
        engine.coordination._speeds, regroup = Told(told), engine.coordination.regroup

        def alone(*arguments: Any) -> Any:
            assert not engine.flow.in_flight
            return regroup(*arguments)

        engine.coordination.regroup = alone
        for member in engine.members:
            member.learner.finished = order.behind(member.learner.finished)
        decisions = within(SECONDS, lambda: running.train(6, TASKS)).decisions
        assert [decision.speeds for decision in decisions] == list(told.values())
        assert engine.coordination.rule == Grouping(decisions[-1].groups)
        assert engine.merges == len(merges)
        np.testing.assert_allclose(free._flat(running.variables), trajectory[-1], rtol=0, atol=1e-12)
        kept = engine.program.model.export(engine.parts.bases[0].velocity)
        np.testing.assert_allclose(free._flat(kept), velocity, rtol=0, atol=1e-12)


# Measured


class Listener(Monitor):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def decision(self, decision: Any) -> None:
        self.heard.append(decision)


class Slow:
    """Tasks take 4 ms more, much more than the machine takes; those of one learner 20 ms."""

    def __init__(self, learner: int) -> None:
        self.learner, self.tasks = learner, 0
        """tasks: that the slow learner has begun."""

    def __call__(self, where: str, learner: int, call: int) -> None:
        if where == "forward":
            self.tasks += learner == self.learner
            time.sleep(0.02 if learner == self.learner else 0.004)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "WINDOW_SECONDS", 0.03)


def until_grouped(running: ExecutionContext, groups: set[tuple[int, ...]]) -> list[Any]:
    """Train until these are the groups; the decisions."""
    decisions: list[Any] = []
    end = time.monotonic() + 2 * SECONDS
    while set(engine_of(running).coordination.rule.groups) != groups and time.monotonic() < end:
        decisions += running.train(60, TASKS).decisions
    assert set(engine_of(running).coordination.rule.groups) == groups
    return decisions


@pytest.mark.slow
@one_in(2)
@KERNELS
@pytest.mark.usefixtures("soon")
def test_a_slow_learner_gets_a_group_of_its_own_and_its_place_again(kernels: str) -> None:
    """Though in one group all wait for the slowest, and do equally many tasks."""
    slow, listener = Slow(1), Listener()
    network = perceptron(Probe(action=slow))
    with context(network, rule=Grouping(), learners=3, kernels=kernels, monitors=[listener]) as running:
        assert engine_of(running).coordination.rule == Grouping(((0, 1, 2),))
        decisions = until_grouped(running, {(0, 2), (1,)})
        assert decisions == listener.heard
        assert min(decisions[-1].speeds) == decisions[-1].speeds[1]
        slow.learner = -1
        until_grouped(running, {(0, 1, 2)})


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_what_learners_do_with_each_other_does_not_count() -> None:
    with context(perceptron(Probe(action=Slow(-1))), rule=Grouping(), learners=2) as running:
        learner = running.engine.members[0].learner
        finished = learner.finished

        def slowly(number: int, pace: Any) -> None:
            time.sleep(0.04)
            finished(number, pace)

        learner.finished = slowly
        (first, *_) = running.train(80, TASKS).decisions
        assert min(first.speeds) > 0.3 * max(first.speeds)  # else a tenth


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_what_is_said_makes_the_same_groups() -> None:
    with context(perceptron(Probe(action=Slow(0))), rule=Grouping(), learners=3) as running:
        decision = until_grouped(running, {(1, 2), (0,)})[-1]
        rule = engine_of(running).coordination.rule
    groups = str(decision).partition(":")[0].removeprefix("groups ")
    defaults = Defaults(epochs={"digits": 1}, batch_size=4, solver=SolverConf(learning_rate=0.1))
    options = new_parser("example", "", defaults)[0].parse_args(["--rule", "grouping", "--groups", groups])
    assert configurations(options, defaults).model.rule == rule


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "rule", [Grouping(((0, 1),)), pytest.param(Grouping(1), marks=pytest.mark.slow), AsynchronousSGD()], ids=str
)
def test_groups_that_were_given_stay(rule: Any) -> None:
    """Though both learners have done as many tasks as are measured."""
    slow = Slow(0)
    with context(perceptron(Probe(action=slow)), rule=rule, learners=2) as running:
        before = engine_of(running).coordination.rule
        while slow.tasks < speeds.WARMING_TASKS + speeds.WINDOW_TASKS:
            assert running.train(60, TASKS).decisions == []
        assert running.train(2, TASKS).decisions == []  # speeds are told when a tick begins
        assert engine_of(running).coordination.rule == before


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_other_numbers_of_learners_are_measured_anew() -> None:
    with scripted(2, 3, dataflow=perceptron(Probe(action=Slow(0))), rule=Grouping()) as running:
        decision = until_grouped(running, {(1, 2), (0,)})[-1]
        assert decision == Regrouping(engine_of(running).coordination.rule.groups, decision.speeds)


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_rules_in_turn() -> None:
    rules = RuleSequence(((AsynchronousSGD(), 2), (Grouping(), 10**6)))
    with context(perceptron(Probe(action=Slow(0))), rule=rules, learners=2) as running:
        assert running.train(102, TASKS).decisions  # that of the second phase's engine is heard
        until_grouped(running, {(0,), (1,)})


def test_a_phase_goes_on_with_the_groups_of_its_last_turn() -> None:
    """One group to begin with, so a turn of four merges is four ticks; then learner 0 is said to be faster."""
    rules = RuleSequence(((Grouping(), 4), (SSGD(), 1)))
    with context(rule=rules, learners=2) as running:
        engine: Any = running.engine
        engine.now.coordination._speeds = Told({1: (4, 1)})
        found = []
        for ticks in (1, 3, 1, 4):
            running.train(2 * ticks, TASKS)
            now = engine.now
            grouped = isinstance(now.parts.setting.rule, Grouping)
            found.append(now.coordination.rule if grouped else now.parts.setting.rule)
        alone = Grouping(((0,), (1,)))
        assert found == [Grouping(((0, 1),)), alone, SSGD(), alone]
