"""When training ends, what is tested on the way, and what is recorded."""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import SMA, Checkpoints, DurationUnit, ModelConf, Monitor, SolverConf, TrainingUnit
from crossbow.runtime import run
from crossbow.runtime.keeper import RunKeeper
from crossbow.runtime.limits import Limits
from crossbow.runtime.monitor import Progress
from crossbow.runtime.results import History, Record
from crossbow.runtime.scheduler import TICKS_BEHIND
from crossbow.runtime.stretch import RunState
from crossbow.runtime.task import Completed
from crossbow.types import ConfigurationError, DataError
from tests.support import (
    Probe,
    blobs,
    context,
    dawdle,
    perceptron,
    raising,
)

TASKS, EPOCHS = TrainingUnit.TASKS, TrainingUnit.EPOCHS


class Listener(Monitor):
    """Keeps what it hears."""

    interval = 0.0

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.heard: list[Progress] = []

    def progress(self, progress: Progress) -> None:
        self.heard.append(progress)

    def record(self, record: Record) -> None:
        self.records.append(record)


def tasks_of(records: list[Record]) -> list[int]:
    return [record.tasks for record in records]


# Ends


@pytest.mark.parametrize(
    ("examples", "batch", "learners", "tau", "unit", "count", "expected"),
    [
        # Epochs: the last task is filled from the next epoch, the last tick is whole.
        (40, 4, 1, 1, EPOCHS, 2, [10, 20]),
        (40, 4, 2, 1, EPOCHS, 3, [10, 20, 30]),
        (40, 4, 4, 1, EPOCHS, 3, [12, 20, 32]),  # an epoch is 10 tasks: 2.5, 5, 7.5 ticks
        (40, 4, 2, 3, EPOCHS, 2, [12, 24]),
        (42, 4, 1, 1, EPOCHS, 4, [11, 21, 32, 42]),  # an epoch is 10.5 tasks
        (42, 4, 2, 1, EPOCHS, 2, [12, 22]),
        (5, 4, 3, 1, EPOCHS, 4, [3, 6]),  # 1.25 tasks: ticks of 2.4 epochs
        (40, 40, 2, 1, EPOCHS, 2, [2]),
        (7, 7, 1, 1, EPOCHS, 3, [1, 2, 3]),
        (40, 1, 4, 1, EPOCHS, 1, [40]),
        # Tasks.
        (40, 4, 1, 1, TASKS, 7, [7]),
        (40, 4, 2, 1, TASKS, 7, [8]),
        (40, 4, 3, 1, TASKS, 1, [3]),  # nothing is shorter than a task of every learner
        (40, 4, 2, 2, TASKS, 4, [4]),
        (40, 4, 2, 2, TASKS, 5, [8]),
        (40, 4, 3, 1, TASKS, 22, [12, 21, 24]),
    ],
)
def test_training_ends_on_a_whole_tick(
    examples: int, batch: int, learners: int, tau: int, unit: TrainingUnit, count: int, expected: list[int]
) -> None:
    with context(data=blobs(examples), batch_size=batch, learners=learners, rule=SMA(tau=tau)) as running:
        history = running.train(count, unit)
        assert tasks_of(history.records) == expected
        assert history.stopped == "count"
        assert running.engine.tasks == expected[-1]
        if unit is EPOCHS:
            assert history.records[-1].epoch == count


@pytest.mark.parametrize("learners", [1, 2, 4])
def test_epochs_in_several_calls_are_as_many_as_in_one(learners: int) -> None:
    with context(data=blobs(42), learners=learners) as running:
        at_once = tasks_of(running.train(6).records)
    with context(data=blobs(42), learners=learners) as running:
        one_by_one = [tasks_of(running.train(1).records) for _ in range(6)]
    assert [tasks for (tasks,) in one_by_one] == at_once


def test_an_epoch_from_the_middle_of_another_is_a_whole_one() -> None:
    with context(data=blobs(40), learners=1) as running:
        running.train(3, TASKS)
        history = running.train(1)
        assert tasks_of(history.records) == [10, 13]
        assert history.records[-1].epoch == pytest.approx(1.3)


def test_a_single_image_is_recorded() -> None:
    with context(data=blobs(8, 2), learners=1, batch_size=1) as running:
        assert tasks_of(running.train(1, TASKS).records) == [1]


def test_epochs_one_tick_after_the_end_of_one() -> None:
    with context(data=blobs(8, 2), learners=1, batch_size=4) as running:
        assert [record.epoch for record in running.train(3, TASKS).records] == [1, 1.5]


# Long ticks


# Testing on the way


@pytest.mark.parametrize(
    ("interval", "unit", "count", "counted", "tested", "records"),
    [
        (1, EPOCHS, 3, EPOCHS, [10, 20, 30], [10, 20, 30]),
        (2, EPOCHS, 5, EPOCHS, [20, 40, 50], [10, 20, 30, 40, 50]),  # and at the end
        (9, EPOCHS, 2, EPOCHS, [20], [10, 20]),
        (4, TASKS, 1, EPOCHS, [4, 8, 10], [4, 8, 10]),
        (3, TASKS, 10, TASKS, [4, 6, 10], [4, 6, 10]),  # rounded up to ticks of 2, multiples of 3 in between
        (15, TASKS, 3, EPOCHS, [16, 30], [10, 16, 20, 30]),
        (1, TASKS, 4, TASKS, [2, 4], [2, 4]),
    ],
)
def test_intervals_of_testing(
    interval: int, unit: TrainingUnit, count: int, counted: TrainingUnit, tested: list[int], records: list[int]
) -> None:
    listener = Listener()
    with context(monitors=[listener], test_interval=interval, test_interval_unit=unit, learners=2) as running:
        history = running.train_and_test(count, counted)
    assert tasks_of(history.tests) == tested
    assert tasks_of(history.records) == records
    assert listener.records == history.records
    assert all(record.test is not None and record.test.examples == 13 for record in history.tests)


def test_the_last_test_is_that_of_the_model() -> None:
    with context(test_interval=2) as running:
        assert running.train_and_test(3).records[-1].test == running.test()


def test_training_ends_with_the_accuracy_that_was_wanted() -> None:
    with context() as running:
        history = running.train_and_test(50, target_accuracy=0.75)
        assert history.stopped == "accuracy"
        accuracies = [record.test.accuracy for record in history.tests if record.test]
        assert accuracies[-1] >= 0.75
        assert all(accuracy < 0.75 for accuracy in accuracies[:-1])


def test_no_check_set() -> None:
    with context(data=blobs(check=0)) as running:
        assert running.train(1).stopped == "count"
        with pytest.raises(ConfigurationError, match="train_and_test needs check data"):
            running.train_and_test(1)


# Time and loss


@pytest.mark.parametrize(("duration", "unit"), [(0.1, DurationUnit.SECONDS), (0.1 / 60, DurationUnit.MINUTES)])
def test_training_for_a_duration(duration: float, unit: DurationUnit) -> None:
    probe = Probe(action=dawdle(0.002, share=1.0))  # so that not too many epochs go by
    with context(perceptron(probe), learners=3) as running:
        start = time.perf_counter()
        history = running.train_for_duration(duration, unit)
        wall = time.perf_counter() - start
        assert history.stopped == "duration"
        assert wall >= 0.1
        assert 0 < history.time <= wall
        assert history.records[-1].tasks == running.engine.tasks
        assert running.engine.tasks % 3 == 0
        assert running.train_for_duration(60, count=1).stopped == "count"


def test_time_counts_training_alone() -> None:
    class Slow(Monitor):
        def record(self, record: Record) -> None:
            time.sleep(0.05)

    with context(monitors=[Slow()]) as running:
        start = time.perf_counter()
        history = running.train(3)
        wall = time.perf_counter() - start
        times = [record.time for record in history.records]
        assert times == sorted(times)
        assert 0 < history.time <= wall - 3 * 0.05


def test_training_until_the_loss_is_small() -> None:
    with context(learners=1) as running:
        history = running.train_until_condition(0.4, 100)
        assert history.stopped == "loss"
        assert 0.1 < history.loss < 0.6
        tasks = running.engine.tasks
        assert tasks < 1000
        # It is small already, but only an epoch's tasks can tell.
        again = running.train_until_condition(0.4, 100)
        assert again.stopped == "loss"
        assert 10 <= running.engine.tasks - tasks <= 14


def test_one_lucky_batch_is_not_an_epoch() -> None:
    """The condition is on the mean of an epoch's tasks, from the first one on."""
    with context(learners=1) as running:
        running.train_until_condition(1e9)
        assert running.engine.tasks == 10


def test_training_until_the_loss_is_small_or_the_time_over() -> None:
    with context(perceptron(Probe(action=dawdle(0.002, share=1.0)))) as running:
        assert running.train_until_condition_or_for_duration(-1.0, 0.05).stopped == "duration"
        assert running.train_until_condition_or_for_duration(1e9, 60).stopped == "loss"
        assert running.train_until_condition_or_for_duration(-1.0, 60, count=1).stopped == "count"
        assert running.train_until_condition(-1.0, 3, TASKS).stopped == "count"


# Monitors


def test_monitors_hear_of_progress() -> None:
    listener = Listener()
    with context(monitors=[listener], learners=2) as running:
        running.train(3)
    heard = listener.heard
    assert len(heard) >= 15  # with no interval, at every tick
    assert heard[0].tasks == 0
    assert [progress.tasks for progress in heard] == sorted(progress.tasks for progress in heard)
    assert heard[-1].epoch <= 3
    assert heard[-1].loss > 0
    assert all(progress.time >= 0 and progress.images_per_second >= 0 for progress in heard)


def test_progress_is_not_told_more_often_than_wanted() -> None:
    patient = Listener()
    patient.interval = 60.0
    with context(monitors=[patient], learners=2) as running:
        running.train(3)
    assert len(patient.heard) == 1


def test_records() -> None:
    listener = Listener()
    with context(monitors=[listener], learners=2) as running:
        history = running.train(3)
    assert listener.records == history.records
    assert [record.epoch for record in history.records] == [1, 2, 3]
    for record in history.records:
        assert record.images_per_second > 0
        assert record.learning_rate == 0.1
        assert record.accuracy is None
        assert record.test is None


def test_a_record_has_the_learning_rate_of_the_last_tick() -> None:
    solver = SolverConf(learning_rate=1e-3, policy="linear", decay_steps=3, learning_rate_step_unit="epochs")
    with context(solver=solver, learners=1) as running:
        history = running.train(3)
        tasks = running.engine.tasks_per_epoch
        expected = [1e-3 * (1 - (epoch * tasks - 1) / (3 * tasks)) for epoch in (1, 2, 3)]
        assert [record.learning_rate for record in history.records] == pytest.approx(expected)


class InEpoch(Monitor):
    """Acts in the third epoch."""

    interval = 0.0

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action

    def progress(self, progress: Progress) -> None:
        if progress.epoch > 2:
            self.action()


@pytest.mark.parametrize(
    ("action", "error", "stopped", "message", "epochs"),
    [
        (raising(DataError("full")), DataError, "error", "DataError: full", 2),
        (raising(KeyboardInterrupt()), KeyboardInterrupt, "interrupt", "", 2),
        (
            lambda: signal.raise_signal(signal.SIGINT),
            KeyboardInterrupt,
            "interrupt",
            "",
            3,
        ),  # 2 and a part
    ],
)
def test_the_history_survives_what_ends_training(
    action: Callable[[], None], error: type[BaseException], stopped: str, message: str, epochs: int
) -> None:
    with context(data=blobs(40), learners=2, monitors=[InEpoch(action)]) as running:
        with pytest.raises(error):
            running.train_and_test(5)
        history = running.history
        assert [math.ceil(record.epoch) for record in history.records] == list(range(1, epochs + 1))
        assert len(history.tests) == 2
        assert (history.stopped, history.message) == (stopped, message)
        assert history.best in history.tests


def test_the_last_checkpoint_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a run which a signal ends."""
    ends, end = list[History](), RunKeeper.end

    def counted(keeper: RunKeeper, history: History, state: Callable[[], RunState]) -> None:
        ends.append(history)
        end(keeper, history, state)

    monkeypatch.setattr(RunKeeper, "end", counted)
    interrupting = InEpoch(lambda: signal.raise_signal(signal.SIGINT))
    options: dict[str, Any] = {"data": blobs(40), "checkpoints": Checkpoints(tmp_path)}
    with context(**options, monitors=[interrupting]) as running, pytest.raises(KeyboardInterrupt):
        running.train(5)
    assert len(ends) == 1


@pytest.mark.parametrize("wanted_at", [6, 8])
def test_a_loss_is_reached_at_the_end_of_a_tick(wanted_at: int) -> None:
    """Within a tick of four tasks, the moving loss may fall below what is wanted, and rise again."""
    mean = SimpleNamespace(add=lambda *result: None, full=True, moving_loss=1.0)
    engine = SimpleNamespace(boundary=8, clock=SimpleNamespace(tasks_per_tick=4))
    fake: Any = SimpleNamespace(mean=mean, engine=engine, limits=SimpleNamespace(loss=0.5), reached=math.inf)
    fake.stretch, fake._counted = SimpleNamespace(count=lambda examples: None), 0
    for number in range(12):
        mean.moving_loss = 0.25 if number + 1 == wanted_at else 1.0
        run.TrainingRun._add(fake, Completed(number, 1.0, None, 4, 0))
    assert fake.reached == (8 if wanted_at == 8 else math.inf)


def test_training_ends_some_ticks_after_a_loss_is_reached() -> None:
    """In the middle of an epoch: as many as those whose results may be missing, wherever they are."""
    means = list[float]()

    def train(limits: Limits) -> tuple[float, int]:
        with context(learners=1, precision="float64", data=blobs(120)) as running:
            training = run.TrainingRun(running.engine, ModelConf(batch_size=4), limits, (), test=False)
            add = training.mean.add

            def noted(loss: float, accuracy: float | None) -> None:
                add(loss, accuracy)
                means.append(training.mean.moving_loss if training.mean.full else math.inf)

            training.mean.add = noted  # type: ignore[method-assign]
            training.run()
            return training.reached, running.engine.tasks

    assert train(Limits(count=60, unit=TrainingUnit.TASKS)) == (math.inf, 60)
    lowest = [*itertools.accumulate(means, min)]
    wanted = next(task for task in range(35, 45) if lowest[task] < lowest[task - 1])
    assert train(Limits(loss=means[wanted])) == (wanted + 1, wanted + 1 + TICKS_BEHIND)
