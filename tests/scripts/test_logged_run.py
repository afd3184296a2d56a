"""What is read from the output directory of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import DataError, JsonLinesMonitor
from crossbow.runtime.tuner import Decision
from crossbow.scripts.logged_run import read_run
from crossbow.scripts.run_directory import VERSION
from tests.scripts.run_files import record, write_run

RECORDS = [record(1, 0.5), record(2, 0.8), record(2.5, None), record(3, 0.8)]


def test_everything_that_was_logged(tmp_path: Path) -> None:
    description = {
        "settings": {"batch_size": 8, "rule": "sma"},
        "seed": 7,
        "data": {"name": "digits", "fingerprint": "ab"},
        "state": "running",
    }
    run = read_run(write_run(tmp_path / "run", RECORDS, description=description))
    assert run.name == "run"
    assert run.records == RECORDS
    assert run.best == RECORDS[1], "the first of equal ones"
    assert run.reaching(0.8) == RECORDS[1]
    assert run.reaching(0.81) is None
    assert run.batch_size == 8, "run.json comes before the log's header"
    assert run.settings == {
        "model": "lenet",
        "batch_size": 8,
        "rule": "sma",
        "seed": 7,
        "data name": "digits",
        "data fingerprint": "ab",
    }
    assert run.description == description


def test_decisions_and_an_incomplete_line(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", RECORDS[:1]) / "log.jsonl"
    decision = Decision(2, 3, 2, "not 3: too little memory")
    log = JsonLinesMonitor(path.parent / "other")
    log.decision(decision)
    path.write_text(path.read_text() + (path.parent / "other").read_text() + '{"epoch": 2.0, "ta')
    run = read_run(path.parent)
    assert run.decisions == [str(decision)]
    assert run.records == RECORDS[:1]


@pytest.mark.parametrize("line", ["no JSON", "[1]", '{"epoch": 3}', '{"epoch": "x"}'])
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", RECORDS[:1]) / "log.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=r"log\.jsonl, line 3: expected a .*\. Received: "):
        read_run(path.parent)


def test_directories_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, received in (("none", "nothing of that name"), ("file", "a file"), (".", "one without it")):
        with pytest.raises(DataError, match=rf"expected the output directory of a run.*\. Received: {received}$"):
            read_run(tmp_path / name)
    directory = write_run(tmp_path / "run", RECORDS)
    for text, received in (("{", "Expecting"), ("[1]", "list")):
        (directory / "run.json").write_text(text)
        with pytest.raises(DataError, match=rf"run\.json: expected a description of a run.*\. Received: {received}"):
            read_run(directory)


def test_a_run_of_a_newer_version(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", RECORDS, description={"version": VERSION + 1})
    with pytest.raises(DataError, match=rf"run\.json: expected a run of version {VERSION} or older\. Received"):
        read_run(directory)
