"""How monitors end training, on purpose and by their errors. When they are called is tested in `test_run`."""

from __future__ import annotations

import pytest

from crossbow import DataError, Monitor, MonitorError, Record
from crossbow.runtime.monitor import Progress
from tests.support import blobs, context


class Ender(Monitor):
    """Ends training at the first event of this name after `tasks` tasks."""

    interval = 0.0

    def __init__(self, event: str, tasks: int) -> None:
        self.event, self.tasks = event, tasks

    def progress(self, progress: Progress) -> None:
        self._perhaps("progress", progress.tasks)

    def record(self, record: Record) -> None:
        self._perhaps("record", record.tasks)

    def _perhaps(self, event: str, tasks: int) -> None:
        if event == self.event and tasks >= self.tasks:
            self.end_training(f"{event} after {self.tasks} tasks")


@pytest.mark.parametrize("event", ["progress", "record"])
def test_a_monitor_ends_training(event: str) -> None:
    """After the record, or on a tick within the epoch; and only this call."""
    with context(data=blobs(40), learners=2, monitors=[Ender(event, 12)]) as running:
        history = running.train_and_test(100)
        assert history.stopped == "monitor"
        assert history.message == f"Ender: {event} after 12 tasks"
        assert history.records[-1].test is not None
        assert 12 <= history.records[-1].tasks < 100 * 10
        assert history.records[-1].tasks % 2 == 0
        if event == "record":
            assert [record.tasks for record in history.records] == [10, 20]
            assert running.train(1).stopped == "count", "training was complete when the monitor ended it"


class Broken(Monitor):
    """Raises an exception at an event."""

    interval = 0.0

    def __init__(self, event: str, error: Exception) -> None:
        self.event, self.error = event, error

    def progress(self, progress: Progress) -> None:
        self._raise("progress")

    def record(self, record: Record) -> None:
        self._raise("record")

    def close(self) -> None:
        self._raise("close")

    def _raise(self, event: str) -> None:
        if event == self.event:
            raise self.error


@pytest.mark.parametrize("event", ["progress", "record", "close"])
def test_a_monitor_that_raises_ends_training_by_name(event: str) -> None:
    error = ZeroDivisionError("no tests yet")
    message = rf"^the monitor Broken failed in `{event}`: ZeroDivisionError: no tests yet$"
    with (
        pytest.raises(MonitorError, match=message) as caught,
        context(data=blobs(40), learners=2, monitors=[Broken(event, error)]) as running,
    ):
        running.train(1)
    assert caught.value.__cause__ is error


def test_an_error_for_users_keeps_its_type_and_names_the_monitor() -> None:
    monitors = [Broken("record", DataError("the disk is full"))]
    with (
        context(data=blobs(40), learners=2, monitors=monitors) as running,
        pytest.raises(DataError, match="disk") as caught,
    ):
        running.train(1)
    assert caught.value.__notes__ == ["raised by the monitor Broken in `record`"]
