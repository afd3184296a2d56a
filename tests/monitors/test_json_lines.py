"""The log of records: its lines, decisions, and where it cannot be written."""

from __future__ import annotations

import errno
import io
import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crossbow import DataError, History, JsonLinesMonitor, Record, TestResult
from crossbow.cluster.members import Lost, Rank
from crossbow.runtime.monitor import Progress
from crossbow.runtime.new_view import Departure, NewCoordinator, NewRanks
from crossbow.runtime.speeds import Regrouping
from crossbow.runtime.tuner import Decision, Retuning
from tests.monitors import records
from tests.support import Probe, Trap, context, perceptron, raising

EMPTY = History([])
TESTED = TestResult(loss=0.25, accuracy=0.9765, examples=100)


def record(epoch: float = 3.0, test: TestResult | None = TESTED) -> Record:
    return Record(epoch, 100, 12.34, 0.5, None, 1234.5, 0.1, test)


def progress(epoch: float = 1.5, *, time: float = 6.0, loss: float = 0.5, speed: float = 4321.0) -> Progress:
    return Progress(epoch, 100, time, loss, speed)


def test_the_log_has_one_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    with context(monitors=[JsonLinesMonitor(path)]) as running:
        history = running.train_and_test(3)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(lines) == 3
        for line, record in zip(lines, history.records, strict=True):
            assert record.test is not None
            assert line["epoch"] == record.epoch
            assert line["time"] == record.time
            assert line["loss"] == record.loss
            assert line["images_per_second"] == record.images_per_second
            assert line["test_accuracy"] == record.test.accuracy
            assert line["test_examples"] == 13
        running.train(1)
        assert len(path.read_text().splitlines()) == 4
        assert json.loads(path.read_text().splitlines()[-1])["test_accuracy"] is None


def test_an_older_log_is_left_alone_until_training_begins(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("old\n")
    with context(monitors=[JsonLinesMonitor(path)]) as running:
        assert path.read_text() == "old\n"
        running.train(1)
    assert len(path.read_text().splitlines()) == 1
    assert "old" not in path.read_text()


def test_the_log_is_whole_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    trap = Trap(raising(ValueError("no")), call=25)
    network, log = perceptron(Probe(action=trap)), JsonLinesMonitor(path)
    with context(network, monitors=[log], learners=1) as running, pytest.raises(RuntimeError, match="task 25"):
        running.train(5)
    assert path.read_text().endswith("\n")
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [1, 2]


def test_the_log_stays_readable_where_a_number_is_none(tmp_path: Path) -> None:
    """JSON has no NaN and no infinity."""
    record = Record(1, 2, 3.0, math.nan, None, math.inf, 0.1)
    JsonLinesMonitor(tmp_path / "log").record(record)

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    line = json.loads((tmp_path / "log").read_text(), parse_constant=refuse)
    assert line["loss"] is None
    assert line["images_per_second"] is None
    assert line["time"] == 3.0


def test_decisions_are_logged_with_their_numbers(tmp_path: Path) -> None:
    monitor = JsonLinesMonitor(tmp_path / "log")
    monitor.record(record())
    monitor.decision(Decision(2, 3, 2, "less than 1.01", 4, 0.75, 0.5, math.nan, 1000.0, 750.0))
    monitor.decision(Decision(2, 3, 2, "not 3: too little memory"))
    monitor.decision(Retuning(2, 180.0, (100.0, 90.5)))
    monitor.decision(Regrouping(((0, 2), (1,)), (80.0, 12.5, 81.0)))
    text = (tmp_path / "log").read_text()
    _, compared, refused, again, grouped = map(json.loads, text.splitlines())
    assert "NaN" not in text
    assert compared["decision"].startswith("2 learners: 3 are 0.750 times as fast as 2, with 750 and 1,000 images/s ")
    assert (compared["chosen"], compared["ratio"], compared["high"]) == (2, 0.75, None)
    assert (compared["fewer_images_per_second"], compared["more_images_per_second"]) == (1000.0, 750.0)
    assert refused["decision"] == "2 learners: not 3: too little memory"
    assert (refused["pairs"], refused["ratio"], refused["fewer_images_per_second"]) == (0, None, None)
    assert again["decision"].startswith("2 learners: compared again, ")
    assert (again["learners"], again["reference"], again["windows"]) == (2, 180.0, [100.0, 90.5])
    assert grouped["decision"] == "groups 0,2/1: learners 0 to 2 do 80.0, 12.5, 81.0 tasks/s"
    assert (grouped["groups"], grouped["speeds"]) == ([[0, 2], [1]], [80.0, 12.5, 81.0])


def test_ranks_that_left_or_joined_are_logged(tmp_path: Path) -> None:
    monitor, rank = JsonLinesMonitor(tmp_path / "log"), Rank(1, "node2")
    monitor.left(Departure(1, 1, 2, 20, 60, 0.5, True, (Lost(rank, "killed"),)))
    monitor.joined(NewRanks(2, 2, 4, 30, 80, 0.25, True, (rank,)))
    monitor.coordinator(NewCoordinator(rank, 3, 40, 100))
    left, joined, coordinator = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert left["left"].startswith("rank 1 (node2) left: killed. Training goes on after task 60, with 1 rank ")
    assert left["lost"] == [{"rank": {"number": 1, "host": "node2"}, "reason": "killed"}]
    assert joined["joined"].startswith("rank 1 (node2) joined. Training goes on after task 80, with 2 ranks ")
    assert joined["new"] == [{"number": 1, "host": "node2"}]
    text = "rank 1 (node2) is now rank 0, which decides and writes the files"
    assert coordinator == {"coordinator": text, "rank": joined["new"][0], "view": 3, "tick": 40, "tasks": 100}
    assert [joined[name] for name in ("view", "ranks", "learners", "tick", "tasks", "seconds")] == [
        2,
        2,
        4,
        30,
        80,
        0.25,
    ]


def test_a_log_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file: expected a directory to write to\. Received: a file$"):
        JsonLinesMonitor(tmp_path / "file" / "log").progress(progress())


def test_a_log_on_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = JsonLinesMonitor(tmp_path / "log")
    monitor.progress(progress())

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(DataError, match=r"log: expected to write the log .*\. Received: Input/output error$"):
        monitor.record(record())


@pytest.mark.parametrize("begin", ["progress", "resume", "take_over"])
def test_a_log_that_cannot_be_begun(begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a process begins with it, it begins again when there is a disk."""
    monitor = JsonLinesMonitor(tmp_path / "log")
    work = {
        "progress": lambda: monitor.progress(progress()),
        "resume": lambda: monitor.resume(0),
        "take_over": lambda: monitor.take_over(EMPTY),
    }[begin]

    def fail(path: Path) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("crossbow.monitors.json_lines.check_regular", fail)
        with pytest.raises(DataError, match=r"log: expected to write the log .*\. Received: Input/output error$"):
            work()
    assert monitor.state() == 0
    work()
    monitor.record(record())
    assert (tmp_path / "log").read_text().count("\n") == 1


def test_a_log_waits_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for a part of a line. Lines follow, each once, when there is room for all."""
    path = tmp_path / "log"
    monitor = JsonLinesMonitor(path)
    monitor.note(number=1)
    length, opened = path.stat().st_size, Path.open

    class Full(io.FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(bytes(data)[:5])

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode, buffering: Full(self, mode))
        monitor.note(number=2)
        assert path.stat().st_size == length, "no part of a line"
        assert monitor.state() == 2 * length, "a checkpoint counts the lines that wait"
        with pytest.raises(DataError, match=r"log: expected to write the log .*\. Received: No space left on device$"):
            monitor.close()
    assert Path.open is opened
    monitor.note(number=3)
    monitor.close()
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize("path", [None, 5, b"log"])
def test_a_log_whose_path_is_none(path: Any) -> None:
    with pytest.raises(TypeError, match=r"^JsonLinesMonitor: expected a path, as a str or a pathlib\.Path\. Received"):
        JsonLinesMonitor(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_log_is_a_regular_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe would wait for somebody to read it."""
    os.mkfifo(tmp_path / "pipe")
    for path, received in ((tmp_path / "pipe", "a pipe"), (tmp_path, "a directory")):
        monitor = JsonLinesMonitor(path)
        for begin in (partial(monitor.record, record()), partial(monitor.resume, 0), partial(monitor.take_over, EMPTY)):
            with pytest.raises(
                DataError, match=rf"^{path}: expected the name of a file to write\. Received: {received}$"
            ):
                begin()
    monkeypatch.setenv("HOME", str(tmp_path))
    JsonLinesMonitor("~/log").record(record())
    assert (tmp_path / "log").read_text().count("\n") == 1


@pytest.mark.parametrize("here", [True, False])
def test_another_process_goes_on_with_the_log(tmp_path: Path, here: bool) -> None:
    history, path = History([records.record(1), records.record(2)]), tmp_path / "log.jsonl"
    if here:
        first = JsonLinesMonitor(path)
        first.header({"rule": "SMA()"})
        first.record(records.record(1))  # it was lost before the second record
        first.note(last="line")
        with path.open("a") as file:
            file.write('{"epoch": 2.0, "ta')
    second = JsonLinesMonitor(path)
    second.take_over(history)
    second.record(records.record(3))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == (["run", "epoch", "last"] if here else ["epoch"]) + ["epoch"] * 2
    assert [line["tasks"] for line in lines if "epoch" in line] == [100, 200, 300]


def test_a_record_that_only_the_lost_process_knew_of_is_not_in_the_log_twice(tmp_path: Path) -> None:
    first = JsonLinesMonitor(path := tmp_path / "log.jsonl")
    for number in (1, 2):
        first.record(records.record(number))
    second = JsonLinesMonitor(path)
    second.take_over(History([records.record(1)]))
    second.note(left="rank 0")
    second.record(records.record(2))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("tasks", line.get("left")) for line in lines] == [100, "rank 0", 200]
    JsonLinesMonitor(path).take_over(EMPTY)  # in a second training call, before its first record
    assert path.read_text().count("\n") == 3
