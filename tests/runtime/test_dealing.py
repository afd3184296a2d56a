"""What the engine under a rule without a barrier counts behind another one. What it computes: test_free.py."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow import SSGD, Dataflow, TrainingUnit
from crossbow.synch import AsynchronousSGD
from crossbow.types import TaskError
from tests.support import Probe, context, perceptron

TASKS = TrainingUnit.TASKS


def test_slack_goes_by_ticks() -> None:
    """A learner that is in its first task keeps the next tick back, and not the other tasks of its own."""
    with context(rule=AsynchronousSGD(), learners=2, slack=0) as running:
        coordination: Any = running.engine.coordination
        coordination._unfinished = {3: 0}
        assert [coordination._within_slack(tick) for tick in (0, 1)] == [True, False]
        coordination._unfinished = {4: 0, 5: 1}
        assert [coordination._within_slack(tick) for tick in (0, 1)] == [True, False]
        coordination._unfinished = {5: 1}
        assert [coordination._within_slack(tick) for tick in (1, 2)] == [True, False]


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
