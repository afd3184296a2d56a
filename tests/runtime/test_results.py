from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import History, Record, TestResult
from crossbow.dataflow.graph import Vertex
from crossbow.dataflow.operator import Operator
from crossbow.ops import Accuracy
from crossbow.runtime.results import (
    COLUMNS,
    LearnerRecord,
    RunningMean,
    SetMean,
    history_state,
    restored_history,
)
from crossbow.runtime.speeds import Regrouping
from crossbow.runtime.tuner import Decision, Retuning


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


def test_a_history_is_shown_in_a_line() -> None:
    assert repr(History()) == "History(no records)"
    records = [record(accuracy=0.971), record(2.5, loss=0.42, tested=False)]
    history = History(records, "count")
    assert repr(history) == "History(epoch 2.5, loss 0.42, test accuracy 97.1%; stopped: count)"
    assert history == History(records, "count") != History(records)
    records[0] = record(accuracy=None)
    assert repr(History(records, "monitor", "enough")).endswith(", test loss 0.1; stopped: monitor, enough)")


def test_the_first_reason_counts() -> None:
    history = History()
    history.explain("first")
    history.explain("second")
    history.stop("monitor")
    assert (history.message, history.stopped) == ("first", "monitor")


def test_the_share_of_time_that_waited_for_data() -> None:
    """½ of the first two seconds, and all of the third: 2 of 3."""
    stretches = [replace(record(), time=time, data_wait=wait) for time, wait in ((2.0, 0.5), (3.0, 1.0))]
    assert History(stretches).data_wait == pytest.approx(2 / 3)
    assert History().data_wait == 0.0
    assert History([replace(record(), time=0.0, data_wait=0.5)]).data_wait == 0.0


def test_a_history_is_restored() -> None:
    learner = LearnerRecord(0, 0.5, 0.25, 0.125, 0.0, 100.0, None)
    original = History([replace(record(accuracy=0.5), learners=(learner,)), record(tested=False)])
    original.decisions += [
        Decision(1, 2, 1, "less", 3, 0.9, 0.8, 1.0, 5.0, 4.5),
        Retuning(1, 5.0, (1.0, 2.0)),
        Regrouping(((0,), (1, 2)), (2.0, 1.0, 1.0)),
    ]
    found = restored_history(json.loads(json.dumps(history_state(original))))
    assert found == History(original.records, decisions=original.decisions)
    assert Record.of_numbers({**original.records[0].numbers(), "learners": [asdict(learner)]}) == original.records[0]


def test_running_means_are_restored() -> None:
    mean, other = RunningMean(3), RunningMean(3)
    assert not mean.full
    for number in range(5):
        mean.add(number / 2, 0.25 if number == 3 else None)
    assert mean.full
    assert mean.losses().tolist() == [1.0, 1.5, 2.0]
    other.restore(json.loads(json.dumps(mean.state())), mean.losses())
    for each in (mean, other):
        assert (each.moving_loss, each.count, each.full) == (1.5, 5, True)
        each.add(7.0, None)
        assert each.losses().tolist() == [1.5, 2.0, 7.0]
        assert each.moving_loss == pytest.approx(3.5)
        assert each.take() == (2.0, 0.25 / 6)
        assert each.take() == (0.0, 0.0)
    assert RunningMean(0).take() == (0.0, None)
    short = RunningMean(0)
    short.add(1.0, None)
    short.add(2.0, None)
    assert short.losses().tolist() == [2.0]


def test_the_mean_of_a_set_counts_examples() -> None:
    """Two batches, of whose five labels one is ignored."""
    accuracy = Vertex(0, "accuracy", Operator("accuracy", Accuracy(ignored_label=-1)), ())
    labels = np.array([0, 1, -1, 2, 1], np.int32)
    mean = SetMean(accuracy)
    mean.add(0.5, labels[:3])
    mean.add(1.0, labels[3:])
    mean.add(None, labels)
    assert mean.value(labels) == 3 / 4
    assert SetMean(accuracy).value(np.full(2, -1, np.int32)) == 0
    nothing = SetMean(None)
    nothing.add(1.0, labels)
    assert nothing.value(labels) is None
