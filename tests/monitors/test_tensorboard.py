"""Event files, as TensorBoard's own reader reads them."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from crossbow import ConfigurationError, DataError, History, TensorBoardMonitor
from tests.monitors.records import progress, record

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values, by tag."""
    events = accumulator.EventAccumulator(str(directory)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def train(directory: Path, first: int, last: int, loss: float) -> None:
    monitor = TensorBoardMonitor(directory)
    monitor.progress(progress(100 * (first - 1)))
    for epoch in range(first, last + 1):
        monitor.record(record(epoch, loss=loss, accuracy=0.5 if epoch % 2 else None))
    monitor.close()


def next_second() -> None:
    """Wait for the next second of the clock. The names of event files order them by it, and files of the same second by
    numbers as strings: "9" comes after "10"."""
    begin = int(time.time())
    while int(time.time()) == begin:
        time.sleep(0.02)


def test_tags_and_steps(tmp_path: Path) -> None:
    train(tmp_path / "events", 1, 3, 0.5)
    found = scalars(tmp_path / "events")
    assert found["loss/training"] == [(100, 0.5), (200, 0.5), (300, 0.5)]
    assert found["loss/test"] == [(100, 0.25), (300, 0.25)]
    assert found["accuracy/test"] == [(100, 0.5), (300, 0.5)]
    assert found["images_per_second"] == [(100, 1234.5), (200, 1234.5), (300, 1234.5)]
    assert "accuracy/training" not in found, "the records have none"
    assert "tasks" not in found, "that is the step"


def test_a_record_is_read_at_once(tmp_path: Path) -> None:
    monitor = TensorBoardMonitor(tmp_path)
    monitor.progress(progress())
    monitor.record(record(1))
    assert scalars(tmp_path)["loss/training"] == [(100, 0.5)]
    monitor.close()
    monitor.close()


@pytest.mark.slow
def test_resumed_training_replaces_what_came_after_its_start(tmp_path: Path) -> None:
    train(tmp_path, 1, 4, 1.0)
    next_second()
    train(tmp_path, 3, 5, 2.0)
    assert scalars(tmp_path)["loss/training"] == [(100, 1.0), (200, 1.0), (300, 2.0), (400, 2.0), (500, 2.0)]
    next_second()
    train(tmp_path, 1, 1, 3.0)
    assert scalars(tmp_path)["loss/training"] == [(100, 3.0)]


@pytest.mark.slow
def test_a_record_after_the_checkpoint_is_dropped(tmp_path: Path) -> None:
    """An interrupted process writes a checkpoint, and then a record of its unfinished epoch at the same task."""
    first = TensorBoardMonitor(tmp_path)
    first.progress(progress())
    first.record(record(1))
    state = first.state()
    first.record(replace(record(2), epoch=1.5, tasks=150))
    first.close()
    next_second()
    second = TensorBoardMonitor(tmp_path)
    second.resume(state)
    assert second.state() == state
    second.progress(progress(150))
    second.record(record(2))
    second.close()
    assert [step for step, _ in scalars(tmp_path)["loss/training"]] == [100, 200]


@pytest.mark.slow
def test_another_process_goes_on_with_the_records(tmp_path: Path) -> None:
    train(tmp_path, 1, 2, 1.0)
    next_second()
    second = TensorBoardMonitor(tmp_path)
    second.take_over(History([record(1), record(2)]))
    second.progress(progress(250))
    second.record(record(3))
    second.close()
    assert [step for step, _ in scalars(tmp_path)["loss/training"]] == [100, 200, 300]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'crossbow\[tensorboard\]'"):
        TensorBoardMonitor(tmp_path)


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"expected a directory to write to\. Received: a file"):
        TensorBoardMonitor(tmp_path / "file").progress(progress())
