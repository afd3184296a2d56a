"""The list of bad records that a script writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossbow import History
from crossbow.data.examples import BadExample
from crossbow.scripts.bad_records import BadRecordsMonitor
from crossbow.types import DataError, Phase


def example(index: int) -> BadExample:
    return BadExample(index, f"train.records.1, record {index}", "expected an image file. Received: “Ünicode”")


def test_one_line_for_each(tmp_path: Path) -> None:
    monitor = BadRecordsMonitor(tmp_path / "bad_records.jsonl")
    monitor.bad_example(Phase.TRAIN, example(7))
    assert monitor.summary() == f"left out 1 training example that cannot be decoded: {monitor.path}"
    monitor.bad_example(Phase.TRAIN, example(3))
    monitor.bad_example(Phase.CHECK, example(0))
    lines = [json.loads(line) for line in monitor.path.read_text("utf-8").splitlines()]
    assert [(line["phase"], line["index"]) for line in lines] == [("train", 7), ("train", 3), ("check", 0)]
    assert (lines[0]["source"], lines[0]["reason"]) == (example(7).source, example(7).reason)
    assert monitor.summary() == f"left out 2 training and 1 test examples that cannot be decoded: {monitor.path}"


def test_without_bad_records_there_is_no_file(tmp_path: Path) -> None:
    monitor = BadRecordsMonitor(tmp_path / "bad_records.jsonl")
    monitor.prepare()
    assert monitor.summary() == ""
    assert not monitor.path.exists()
    monitor.path.write_text("of an earlier run\n")
    monitor.prepare()
    assert not monitor.path.exists()


def test_another_process_goes_on_with_the_list(tmp_path: Path) -> None:
    first, second = (BadRecordsMonitor(tmp_path / "bad_records.jsonl") for _ in range(2))
    second.take_over(History())
    assert second.summary() == ""
    first.bad_example(Phase.TRAIN, example(7))
    second.take_over(History())
    second.bad_example(Phase.CHECK, example(0))
    assert second.summary().startswith("left out 1 training and 1 test examples")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    monitor = BadRecordsMonitor(tmp_path)
    for write in (monitor.prepare, lambda: monitor.bad_example(Phase.TRAIN, example(0))):
        with pytest.raises(DataError, match="expected to write the list of bad examples"):
            write()
