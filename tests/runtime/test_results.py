from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import History, Record, TestResult
from crossbow.runtime.results import COLUMNS, RunningMean


def record(epoch: float = 1, *, loss: float = 0.5, accuracy: float | None = None, tested: bool = True) -> Record:
    test = TestResult(loss=0.1, accuracy=accuracy, examples=10) if tested else None
    return Record(
        epoch=epoch,
        tasks=1,
        time=epoch * 2,
        loss=loss,
        accuracy=None,
        images_per_second=1,
        learning_rate=0.1,
        test=test,
    )


@pytest.mark.parametrize("tested", [True, False])
def test_numbers_of_a_record_and_back(tested: bool) -> None:
    original = record(2, tested=tested, accuracy=0.25)
    numbers = original.numbers()
    assert numbers["test_accuracy"] == (0.25 if tested else None)
    assert list(numbers) == list(COLUMNS)
    assert Record.of_numbers({**numbers, "something": 1}) == original
    assert math.isnan(Record.of_numbers({**numbers, "loss": None}).loss)
    del numbers["tasks"]
    with pytest.raises(KeyError, match="tasks"):
        Record.of_numbers(numbers)


def test_a_history_of_nothing() -> None:
    history = History()
    assert (history.time, history.tests, history.best, history.stopped) == (0.0, [], None, "")
    assert math.isnan(history.loss)


def test_a_history_of_several_stretches() -> None:
    records = [
        record(1, accuracy=0.5),
        record(2, tested=False),
        record(3, accuracy=0.8, loss=0.25),
        record(4, accuracy=0.8),
    ]
    history = History(records)
    assert history.time == 8.0
    assert history.loss == 0.5
    assert history.tests == [records[0], records[2], records[3]]
    assert history.best is records[2]  # the first of equals


def test_the_best_of_a_regression_has_the_lowest_test_loss() -> None:
    untested, first, second, equal, broken = (record(n, tested=n > 1) for n in range(1, 6))
    records = [
        replace(each, test=each.test and replace(each.test, loss=loss))
        for each, loss in zip((untested, first, second, equal, broken), (0, 3.0, 1.0, 1.0, math.nan), strict=True)
    ]
    assert History(records).best is records[2]
    assert History([records[4]]).best is None
    worthless = record(accuracy=0.0)
    assert History([*records, worthless]).best is worthless  # accuracies come first


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60), st.integers(1, 20))
def test_running_means(losses: list[float], window: int) -> None:
    mean = RunningMean(window)
    for loss in losses:
        mean.add(loss, None)
    assert mean.moving_loss == pytest.approx(sum(losses[-window:]) / len(losses[-window:]), abs=1e-9)
    loss, accuracy = mean.take()
    assert loss == pytest.approx(sum(losses) / len(losses), abs=1e-9)
    assert accuracy is None


def test_a_take_starts_afresh_and_the_window_goes_on() -> None:
    mean = RunningMean(2)
    assert math.isnan(mean.moving_loss)
    mean.add(1.0, 0.5)
    assert mean.take() == (1.0, 0.5)
    mean.add(3.0, 1.0)
    assert mean.moving_loss == 2.0
    assert mean.take() == (3.0, 1.0)
