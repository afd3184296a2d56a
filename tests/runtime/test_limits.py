"""Limits of training, and the numbers of tasks at which it ends and is tested."""

from __future__ import annotations

import math
from typing import Any

import pytest

from crossbow import SMA, TrainingUnit
from crossbow.data.order import TrainingOrder
from crossbow.runtime.limits import next_multiple
from crossbow.types import ConfigurationError
from tests.runtime.test_run import EPOCHS, TASKS, Listener
from tests.support import blobs, context


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "one"])
def test_a_count_that_is_none_is_refused(count: Any) -> None:
    with context() as running, pytest.raises(ConfigurationError, match="count must be an integer ≥ 1"):
        running.train(count)


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("train", {"count": 1, "unit": "epochs"}, "unit must be a TrainingUnit. Received: unit='epochs'"),
        ("train_for_duration", {"duration": 0}, "duration must be a finite number > 0"),
        ("train_for_duration", {"duration": math.inf}, "duration must be a finite number > 0"),
        ("train_for_duration", {"duration": 1, "duration_unit": 60}, "duration_unit must be a DurationUnit"),
        ("train_until_condition", {"target_loss": math.nan}, "loss must be a finite number"),
        ("train_and_test", {"count": 1, "target_accuracy": 97}, "accuracy must be a finite number ≥ 0 and ≤ 1"),
    ],
)
def test_bad_limits_are_refused(method: str, arguments: dict[str, Any], text: str) -> None:
    with context() as running:
        with pytest.raises(ConfigurationError, match=text):
            getattr(running, method)(**arguments)
        assert running.engine.tick == 0


@pytest.mark.parametrize(
    ("tau", "count", "unit", "asked"),
    [
        (6, 1, EPOCHS, 11),  # 42 examples in batches of 4: 10.5 tasks
        (6, 11, TASKS, 11),
        (2, 1, TASKS, 1),
        (1000, 95, EPOCHS, 998),
        (10**30, 3, EPOCHS, 32),
    ],
)
def test_a_tick_longer_than_the_training_is_refused(tau: int, count: int, unit: TrainingUnit, asked: int) -> None:
    listener = Listener()
    with context(data=blobs(42), rule=SMA(tau=tau), learners=2, monitors=[listener]) as running:
        for train in (running.train, running.train_and_test):
            with pytest.raises(ConfigurationError) as caught:
                train(count, unit)
            assert str(caught.value) == (
                f"expected at most {asked} tasks in a tick, those of the training asked for. "
                f"Received: {2 * tau}, tau={tau} for each of the 2 learners"
            )
        assert running.engine.tick == 0
        assert listener.heard == []


def test_a_tick_as_long_as_the_training_may_be_asked_for_again_and_again() -> None:
    """Though the second epoch, from the first one's end in the next one on, is shorter by a task."""
    with context(data=blobs(42), wpc=11, learners=1) as running:
        assert [running.train(1).records[-1].tasks for _ in range(3)] == [11, 22, 33]


@pytest.mark.parametrize(
    ("interval", "unit", "tasks", "expected"),
    [
        (3, TASKS, 0, 3),
        (3, TASKS, 8, 9),
        (3, TASKS, 9, 12),
        (2, EPOCHS, 9, 20),
        (2, EPOCHS, 19, 20),
        (2, EPOCHS, 20, 40),
    ],
)
def test_the_end_of_the_next_interval(interval: int, unit: TrainingUnit, tasks: int, expected: int) -> None:
    assert next_multiple(TrainingOrder(40, 4, 0), interval, unit, tasks) == expected  # ten tasks in an epoch
