"""When training ends because it no longer helps."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossbow import Checkpoints, ConfigurationError, EarlyStopping, History, Monitor, Record, TestResult
from crossbow.runtime.monitor import tell
from tests.monitors.records import progress, record
from tests.support import context


def stops(monitor: EarlyStopping, *records: Record) -> list[str]:
    return [tell(monitor, "record", each) for each in records]


def test_patience_counts_tests_without_improvement() -> None:
    monitor = EarlyStopping(2)
    scores = (0.5, 0.6, None, 0.6, None, 0.7, 0.65, 0.7)
    reasons = stops(monitor, *(record(n, accuracy=score) for n, score in enumerate(scores, 1)))
    assert reasons == [""] * 7 + ["EarlyStopping: test accuracy not better than 0.7 in 2 records"]
    assert monitor.best == 0.7
    assert monitor.waited == 2


def test_a_loss_improves_when_it_falls() -> None:
    monitor = EarlyStopping(1, "loss", least_change=0.1)
    assert math.isnan(monitor.best)
    assert stops(monitor, record(1, loss=1.0), record(2, loss=0.8)) == ["", ""]
    assert stops(monitor, record(3, loss=0.75)) == ["EarlyStopping: loss not better than 0.8 in 1 records"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patience": 0}, r"patience must be an integer ≥ 1\. Received: 0"),
        ({"patience": 3, "measure": "recall"}, r"measure must be one of test_accuracy, .*measure='recall'"),
        ({"patience": 3, "least_change": -1.0}, r"least_change must be a finite number ≥ 0\. Received: -1"),
    ],
)
def test_bad_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EarlyStopping(**arguments)


def test_another_process_goes_on_with_the_records_so_far() -> None:
    first, second = EarlyStopping(2, "loss"), EarlyStopping(2, "loss")
    history = History([record(1, loss=1.0), record(2, loss=2.0)])
    stops(first, *history.records)
    second.take_over(history)
    assert stops(first, record(3, loss=3.0)) == stops(second, record(3, loss=3.0)) != [""]


def test_it_goes_on_from_a_checkpoint() -> None:
    first, second, other = EarlyStopping(3), EarlyStopping(3), EarlyStopping(3, "loss")
    assert first.state() == {"measure": "test_accuracy", "best": None, "waited": 0}
    stops(first, record(1, accuracy=0.6), record(2, accuracy=0.5))
    for monitor in (second, other):
        monitor.resume(json.loads(json.dumps(first.state())))
    assert (second.best, second.waited) == (0.6, 1)
    assert math.isnan(other.best), "another measure"
    last = record(3, accuracy=0.5), record(4, accuracy=0.5)
    assert (
        stops(second, *last)
        == stops(first, *last)
        == ["", "EarlyStopping: test accuracy not better than 0.6 in 3 records"]
    )


def test_a_run_that_was_resumed_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    class Interrupts(Monitor):
        def record(self, record: Record) -> None:
            if record.epoch == 3:
                raise KeyboardInterrupt

    def stopping() -> EarlyStopping:
        return EarlyStopping(4, "loss", least_change=100.0)  # nothing is better than the first record

    checkpoints = Checkpoints(tmp_path)
    with context(monitors=[stopping(), Interrupts()], checkpoints=checkpoints) as run, pytest.raises(KeyboardInterrupt):
        run.train(9)
    with context(monitors=[stopping()]) as running:
        unbroken = running.train(9)
    with context(monitors=[stopping()], resume=tmp_path) as running:
        assert len(running.continue_training().records) == len(unbroken.records) == 5


def test_each_training_call_begins_anew() -> None:
    monitor = EarlyStopping(2, "loss", least_change=100.0)  # nothing is better than the first record
    for _ in range(2):
        with context(monitors=[monitor]) as running:
            assert [len(running.train(9).records) for _ in range(2)] == [3, 3]
    assert monitor.waited == 2, "the last call can be looked at"


def test_accuracy_of_a_network_that_has_none() -> None:
    message = r"EarlyStopping: expected a network with an accuracy\. Received: one without; watch 'test_loss' instead"
    with pytest.raises(ConfigurationError, match=message):
        EarlyStopping(1).record(replace(record(1), test=TestResult(loss=0.2, accuracy=None, examples=50)))
    with pytest.raises(ConfigurationError, match="watch 'loss' instead"):
        EarlyStopping(1, "accuracy").record(replace(record(1), accuracy=None))
    EarlyStopping(1).record(record(1, accuracy=None))  # there was no test


def test_it_warns_once_where_nothing_is_tested() -> None:
    monitor, untested = EarlyStopping(1), replace(progress(), tested=False)
    monitor.progress(progress())
    with pytest.warns(RuntimeWarning, match="there is no test_accuracy in a training call without tests"):
        monitor.progress(untested)
    monitor.progress(untested)
    EarlyStopping(1, "loss").progress(untested)
