"""Tables of records, as `csv` reads them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossbow import CsvMonitor, DataError, History, Record, TestResult
from tests.monitors.records import progress, record


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_a_record(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.csv"
    monitor = CsvMonitor(path)
    assert not path.exists(), "before training begins, an older file is kept"
    monitor.progress(progress())
    monitor.record(record(1, accuracy=None))
    monitor.record(record(2, loss=0.25))
    first, second = rows(path)
    assert list(first)[:4] == ["epoch", "tasks", "time", "loss"]
    assert first["accuracy"] == first["test_accuracy"] == "", "unknown numbers are empty"
    assert {name: float(value) for name, value in second.items() if value} == {
        name: value for name, value in record(2, loss=0.25).numbers().items() if value is not None
    }


def test_metrics_have_columns_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"

    def tested(epoch: int) -> Record:
        return replace(record(epoch), test=TestResult(0.5, 0.75, 50, {"top-5": 0.875}))

    monitor = CsvMonitor(path)
    monitor.progress(progress())
    monitor.record(record(1))
    assert "test_top-5" not in path.read_text()
    monitor.progress(replace(progress(100), metrics=("top-5",)))  # the next call tests
    monitor.record(tested(2))
    monitor.progress(progress(200))
    monitor.record(record(3))
    assert [row["test_top-5"] for row in rows(path)] == ["", "0.875", ""]
    for metrics in ((), ("top-5",), ("top-5", "top-9")):
        monitor = CsvMonitor(path, resume=True)
        monitor.progress(replace(progress(300), metrics=metrics))
    assert [(row["test_top-5"], row["test_top-9"]) for row in rows(path)] == [("", ""), ("0.875", ""), ("", "")]
    with pytest.raises(DataError, match=r"expected a table of records with the columns .*, test_top-2\. Received"):
        CsvMonitor(path, resume=True).progress(replace(progress(300), metrics=("top-2",)))


def test_progress_keeps_the_rows(tmp_path: Path) -> None:
    monitor = CsvMonitor(tmp_path / "log.csv")
    monitor.progress(progress())
    monitor.record(record(1))
    monitor.progress(progress(100))
    assert len(rows(tmp_path / "log.csv")) == 1


def test_an_older_file_is_replaced_or_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for resume, start in ((False, 0), (True, 100), (False, 0)):
        monitor = CsvMonitor(path, resume=resume)
        monitor.progress(progress(start))
        monitor.record(record(2))
        assert [row["tasks"] for row in rows(path)] == ["200"]
        monitor.record(record(3))
    with path.open("a") as file:
        file.write("4.0,400,8.")  # the process was killed
    monitor = CsvMonitor(path, resume=True)
    monitor.progress(progress(200))
    monitor.record(record(3))
    assert [row["tasks"] for row in rows(path)] == ["200", "300"]


def test_rows_wait_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.csv"
    monitor = CsvMonitor(path)
    monitor.progress(progress())
    size = path.stat().st_size

    class Full(io.FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(bytes(data)[:5])

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode, buffering: Full(self, mode))
        monitor.record(record(1))
        assert path.stat().st_size == size, "no part of a row"
        with pytest.raises(DataError, match=r"to write the table of records. Received: No space left on device$"):
            monitor.close()
    monitor.record(record(2))
    monitor.close()
    assert [row["tasks"] for row in rows(path)] == ["100", "200"]


@pytest.mark.parametrize("given", [False, True])
def test_a_record_after_the_checkpoint_is_dropped(tmp_path: Path, given: bool) -> None:
    """An interrupted process writes a checkpoint, and then a record of its unfinished epoch at the same task."""
    first = CsvMonitor(tmp_path / "log.csv")
    first.progress(progress())
    first.record(record(1))
    state = first.state()
    first.record(replace(record(2), epoch=1.5, tasks=150))
    second = CsvMonitor(tmp_path / "log.csv", resume=given)
    second.resume(state)
    assert second.state() == state
    second.progress(progress(150))
    second.record(record(2))
    assert [row["tasks"] for row in rows(tmp_path / "log.csv")] == ["100", "200"]


@pytest.mark.parametrize("here", [True, False])
def test_another_process_goes_on_with_the_table(tmp_path: Path, here: bool) -> None:
    history, path = History([record(1), record(2)]), tmp_path / "log.csv"
    if here:
        first = CsvMonitor(path)
        first.progress(progress())
        first.record(record(1))  # it was lost before the second record
        with path.open("a") as file:
            file.write("2.0,200,8.")
    second = CsvMonitor(path)
    second.take_over(history)
    second.progress(progress(200))
    second.record(record(3))
    assert [row["tasks"] for row in rows(path)] == ["100", "200", "300"]


def test_another_process_keeps_the_rows_of_earlier_training_calls(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    first = CsvMonitor(path)
    first.progress(progress(100))
    for number in (1, 2):
        first.record(record(number))
    second = CsvMonitor(path)
    second.take_over(History([]))  # the rank was lost before the first record of the call
    assert second.state() == 200
    second.record(record(3))
    assert [row["tasks"] for row in rows(path)] == ["100", "200", "300"]


def test_files_that_cannot_be_written_or_continued(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected the name of a file to write\. Received: a directory"):
        CsvMonitor(tmp_path).progress(progress())
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"other\.csv: expected a table of records"):
        CsvMonitor(other, resume=True).progress(progress())
    assert other.read_text() == "a,b\n1,2\n"
