"""Limits of training, and the numbers of tasks at which it ends and is tested."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import SMA, SolverConf, TrainingUnit
from crossbow.data.order import TrainingOrder
from crossbow.runtime.clock import WorkClock
from crossbow.runtime.limits import Limits, check_tick, end_of_decay, end_of_training, epochs_done, next_multiple
from crossbow.types import ConfigurationError, DurationUnit
from tests.runtime.test_run import EPOCHS, TASKS, Listener
from tests.support import blobs, context


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "one"])
def test_a_count_that_is_none_is_refused(count: Any) -> None:
    with context() as running, pytest.raises(ConfigurationError, match="count must be an integer ≥ 1"):
        running.train(count)


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        (
            "train",
            {"count": 1, "unit": "epochs"},
            "unit must be one of TrainingUnit.EPOCHS, TrainingUnit.TASKS. Received: unit='epochs'",
        ),
        ("train_for_duration", {"duration": 0}, "duration must be a finite number > 0"),
        ("train_for_duration", {"duration": math.inf}, "duration must be a finite number > 0"),
        (
            "train_for_duration",
            {"duration": 1, "duration_unit": 60},
            "duration_unit must be one of DurationUnit.SECONDS, ",
        ),
        ("train_until_condition", {"target_loss": math.nan}, "^target_loss must be a finite number. Rec"),
        ("train_until_condition", {"target_loss": "a"}, "Received: target_loss='a'"),
        (
            "train_and_test",
            {"count": 1, "target_accuracy": 97},
            "^target_accuracy must be a fraction, a finite number ≥ 0 and ≤ 1. Received: target_accuracy=97$",
        ),
        ("train_until_condition", {"target_loss": None}, "training must end: expected a count"),
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


def engine(tasks: int = 0, *, tau: int = 1, learners: int = 4, host_ticks: int | None = None) -> Any:
    """42 examples in batches of 4: epochs end with tasks 11, 21, 32, …"""
    clock = WorkClock(learners, tau, host_ticks=host_ticks)
    return SimpleNamespace(clock=clock, order=TrainingOrder(42, 4, 0), tasks_per_epoch=10.5, tasks=tasks)


@pytest.mark.parametrize(
    ("count", "unit", "start", "expected"),
    [
        (None, EPOCHS, 15, math.inf),
        (7, TASKS, 15, 22),
        (1, EPOCHS, 0, 11),
        (2, EPOCHS, 11, 32),
        (2, EPOCHS, 14, 32),  # in the tick in which the epoch ended
        (2, EPOCHS, 15, 36),
        (1, EPOCHS, 15, 26),  # 10.5 tasks, rounded up
    ],
)
def test_the_end_of_training(count: int | None, unit: TrainingUnit, start: int, expected: float) -> None:
    assert end_of_training(Limits(count=count, unit=unit), engine(), start) == expected


COSINE = SolverConf(policy="cosine", decay_steps=30)
BY_EPOCHS = SolverConf(policy="linear", decay_steps=3, learning_rate_step_unit="epochs")
CYCLE: dict[str, Any] = {"policy": "clr", "step_size": 5, "maximum_learning_rate": 0.5, "super_convergence": True}


@pytest.mark.parametrize(
    ("solver", "limits", "start", "expected"),
    [
        (COSINE, Limits(count=100, unit=TASKS), 0, "after 8 of the 25 ticks of this training call: the decay ends af"),
        (COSINE, Limits(count=33, unit=TASKS), 0, ""),  # in the last tick
        (COSINE, Limits(count=34, unit=TASKS), 0, "after 8 of the 9 ticks"),
        (COSINE, Limits(count=8, unit=TASKS), 40, "after 0 of the 2 ticks"),
        (COSINE, Limits(count=30), 0, '30 tasks. learning_rate_step_unit="epochs" counts epochs'),
        (COSINE, Limits(count=30, seconds=1.0), 0, ""),  # the end is not known
        (COSINE, Limits(count=30, loss=1.0), 0, ""),
        (COSINE, Limits(count=30, accuracy=1.0), 0, "after 8 of the 79 ticks"),
        (COSINE, Limits(seconds=1.0), 0, ""),
        (replace(COSINE, final_learning_rate=1e-3), Limits(count=30), 0, ""),
        (replace(COSINE, learning_rate_step_unit="merges"), Limits(count=30), 0, "after 30 of the 79 ticks"),
        (BY_EPOCHS, Limits(count=3), 0, ""),
        (BY_EPOCHS, Limits(count=1), 21, ""),
        (BY_EPOCHS, Limits(count=4), 0, "after 8 of the 11 ticks of this training call: the decay ends after 3 epochs"),
        (SolverConf(policy="exp", gamma=0.5), Limits(count=30), 0, ""),
        (SolverConf(**CYCLE, annihilation_steps=5), Limits(count=30), 0, ""),
        (
            SolverConf(**CYCLE, annihilation_steps=5, final_learning_rate=0.0),
            Limits(count=30),
            0,
            "the annihilation ends after 15 tasks",
        ),
    ],
)
def test_a_rate_that_becomes_0_before_the_end(solver: SolverConf, limits: Limits, start: int, expected: str) -> None:
    text = end_of_decay(limits, engine(), solver, start)
    assert expected in text if expected else text == ""


@pytest.mark.parametrize(("tasks", "expected"), [(0, 0), (3, 0), (4, 4 / 10.5), (11, 1), (14, 1), (15, 15 / 10.5)])
def test_an_epoch_ends_with_a_tick(tasks: int, expected: float) -> None:
    assert epochs_done(engine(tasks)) == expected


@pytest.mark.parametrize(
    ("tau", "learners", "host_ticks", "count", "refused"),
    [
        (3, 4, None, 12, None),
        (3, 4, None, 11, "tau=3"),
        (1, 4, None, 3, None),  # one task of each learner
        (1, 4, 3, 12, None),
        (1, 4, 3, 9, None),
        (1, 4, 3, 8, "tau=3"),
        (2, 2, 3, 8, "tau=6"),
        (3, 4, None, None, None),
    ],
)
def test_a_tick_that_is_part_of_a_tick_of_hosts(
    tau: int, learners: int, host_ticks: int | None, count: int | None, refused: str | None
) -> None:
    made = engine(tau=tau, learners=learners, host_ticks=host_ticks)
    if refused is None:
        check_tick(Limits(count=count, unit=TASKS), made)
        return
    with pytest.raises(ConfigurationError, match=rf"at most {count} tasks in a tick.*Received: 12, {refused} for each"):
        check_tick(Limits(count=count, unit=TASKS), made)


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


@pytest.mark.parametrize(("limit", "seconds", "over"), [(None, 1e9, False), (2.0, 1.9, False), (2.0, 2.0, True)])
def test_a_limit_of_time(limit: float | None, seconds: float, over: bool) -> None:
    assert Limits(count=1, seconds=limit).time_is_over(seconds) == over


def test_limits_of_a_call_that_continues() -> None:
    before = {"count": 7, "unit": "TASKS", "seconds": 90.0, "loss": 0.5, "accuracy": None}
    kept: dict[str, Any] = dict.fromkeys(("count", "target_loss", "target_accuracy", "duration"), "kept")
    kept["duration_unit"] = DurationUnit.MINUTES
    assert Limits.continued(before, **kept) == Limits(count=7, unit=TASKS, seconds=90.0, loss=0.5)
    changed = {**kept, "count": None, "target_accuracy": 1.0, "duration": 2}
    assert Limits.continued(before, **changed) == Limits(unit=TASKS, seconds=120.0, loss=0.5, accuracy=1.0)
    with pytest.raises(ConfigurationError, match=r"^count must be an integer ≥ 1\. Received: count='keep'$"):
        Limits.continued(before, **{**kept, "count": "keep"})
