"""What the engine under a rule without a barrier counts behind another one. What it computes: test_free.py."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow import SSGD, Dataflow, TrainingUnit
from crossbow.synch import AsynchronousSGD
from crossbow.types import TaskError
from tests.support import Probe, context, perceptron

TASKS = TrainingUnit.TASKS


def test_slack_goes_by_ticks_of_this_engine() -> None:
    """Behind three tasks of another one, with ticks of two, tasks 3 and 4 are one tick, and 5 is in the next."""
    with context(rule=AsynchronousSGD(), learners=2, slack=0) as running:
        engine: Any = running.engine
        engine._tasks_before = 3
        engine._unfinished = {3}
        assert [engine._within_slack(task) for task in (3, 4, 5)] == [True, True, False]
        engine._unfinished = {4, 5}
        assert [engine._within_slack(task) for task in (4, 5)] == [True, False]


def test_a_failure_counts_the_ticks_of_all_engines_once() -> None:
    """Learners were three while the first tasks were done, and are two: their ticks are of other sizes."""
    failing = False

    def fail(where: str, learner: int, call: int) -> None:
        if failing:
            raise RuntimeError("no luck")

    def network() -> Dataflow:
        return perceptron(Probe(action=fail))

    with (
        context(network(), rule=SSGD(), learners=3) as other,
        context(network(), rule=AsynchronousSGD(), learners=2) as running,
    ):
        other.train(6, TASKS)
        running.train(2, TASKS)
        running.engine.continue_from(other.engine)
        running.train(2, TASKS)
        failing = True
        with pytest.raises(TaskError, match="no luck"):
            running.train(2, TASKS)
        assert (running.engine.tick, running.engine.tasks) == (3, 8)
