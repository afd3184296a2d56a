"""The coordination by a clock tick: tasks go to their learners, and a tick ends by itself or at the synchroniser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf
from crossbow.runtime.task import Task
from crossbow.runtime.tick import TickCoordination
from crossbow.solver import Pace
from crossbow.synch import BarrierRule
from tests.support import context, engine_of

PACE = Pace(0.1, 0.0)


def task(number: int = 0) -> Task:
    return Task("local", number, 0, 0, 4, PACE, np.zeros(0))


class Noting:
    """A learner that notes its tasks."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def submit(self, task: Task) -> None:
        self.tasks.append(task)


@pytest.mark.parametrize(("devices", "learners"), [("cpu", 3), ("cpu:0/2,cpu:1/2", 1)])
def test_several_devices_have_a_synchroniser(devices: str, learners: int) -> None:
    several = "," in devices
    with context(devices=devices, learners=learners) as running:
        coordination: Any = engine_of(running).coordination
        assert isinstance(coordination, TickCoordination)
        assert (coordination.synchroniser is not None) == several
        members = coordination.members()
        assert members == [*coordination.learners, *([coordination.synchroniser] if several else [])]
        assert len({member.number for member in members}) == len(members)


def test_tasks_go_to_their_learner_and_ends_to_the_synchroniser() -> None:
    with context(learners=2) as running:
        coordination: Any = engine_of(running).coordination
        learners, coordination.learners = coordination.learners, [Noting(), Noting()]
        coordination.submit(task(5), 1)
        coordination.end_tick(task(6))
        coordination.synchroniser = Noting()
        coordination.end_tick(task(7))
        assert [len(each.tasks) for each in coordination.learners] == [0, 1]
        assert [each.number for each in coordination.synchroniser.tasks] == [7]
        with pytest.raises(AssertionError):
            coordination.submit(task(), None)
        coordination.learners, coordination.synchroniser = learners, None


def test_a_tick_is_one_merge() -> None:
    with context(rule=SMA(tau=3), learners=2) as running:
        coordination: Any = engine_of(running).coordination
        running.train(1)
        engine = engine_of(running)
        assert engine.merges == coordination.merges(engine.tick) == engine.tick > 0
        assert coordination.whole_ticks(0) == engine.tick  # what was merged, not what was reported
        coordination.restart(2)
        assert coordination.whole_ticks(0) == 2
        coordination.restart(engine.tick)


def test_on_one_device_the_merge_reads_what_each_learner_sends() -> None:
    """The mean is spelled out, unless it is combined with other vectors; several devices compute it first."""
    cases: list[tuple[BarrierRule, str, int, set[str]]] = [
        (SMA(), "cpu", 2, {"sent0", "sent1"}),
        (SSGD(), "cpu", 2, {"sent0", "sent1", "mean"}),
        (SSGD(), "cpu", 1, {"sent0"}),
        (SSGD(), "cpu:0/2,cpu:1/2", 1, {"mean"}),
    ]
    for rule, devices, learners, expected in cases:
        with context(rule=rule, devices=devices, learners=learners, solver=SolverConf()) as running:
            coordination: Any = engine_of(running).coordination
            merge = coordination._formulas.over(coordination.coefficients(PACE))["merge"].update
            assert {name for name in merge.vectors if name.startswith("sent") or name == "mean"} == expected
