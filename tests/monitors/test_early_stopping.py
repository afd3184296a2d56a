"""When training ends because it no longer helps."""

from __future__ import annotations

import math
from typing import Any

import pytest

from crossbow import ConfigurationError, EarlyStopping, History, Record
from crossbow.runtime.monitor import tell
from tests.monitors.records import record


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
