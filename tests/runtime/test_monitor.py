"""The console monitor, and where a log cannot be written. What is in it is tested in `test_run`."""

from __future__ import annotations

import io
import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from crossbow import DataError, JsonLinesMonitor, Record, TestResult
from crossbow.runtime.monitor import ConsoleMonitor, Progress
from crossbow.runtime.speeds import Regrouping
from crossbow.runtime.tuner import Decision, Retuning

TESTED = TestResult(loss=0.25, accuracy=0.9765, examples=100)


class Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


def record(epoch: float = 3.0, test: TestResult | None = TESTED) -> Record:
    return Record(epoch, 100, 12.34, 0.5, None, 1234.5, 0.1, test)


def progress(epoch: float = 1.5, *, time: float = 6.0, loss: float = 0.5, speed: float = 4321.0) -> Progress:
    return Progress(epoch, 100, time, loss, speed)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def test_a_line_a_record_on_a_pipe() -> None:
    stream = Stream(terminal=False)
    with ConsoleMonitor(epochs=12, stream=stream) as monitor:
        monitor.progress(progress())
        monitor.record(record())
        monitor.record(record(3.25, None))
    assert stream.getvalue().splitlines() == [
        "epoch  3/12  loss 0.5000  test loss 0.2500  test accuracy 97.65%  1,234 images/s  12.3 s",
        "epoch 3.25/12  loss 0.5000  1,234 images/s  12.3 s",
    ]


def test_without_an_end_and_without_accuracy() -> None:
    line = ConsoleMonitor(stream=Stream(terminal=False)).line(record(7.0, TestResult(0.25, None, 10)))
    assert line == "epoch 7  loss 0.5000  test loss 0.2500  1,234 images/s  12.3 s"


def test_a_bar_on_a_terminal() -> None:
    stream = Stream(terminal=True)
    with ConsoleMonitor(epochs=4, stream=stream) as monitor:
        monitor.progress(progress(1.0))
        monitor.record(record())
    assert re.search(r"epoch 2/4 ━+.* 25 % 4,321 images/s loss 0\.5000 0:00:00 left", stream.plain)
    assert "epoch 3/4  loss 0.5000  test loss 0.2500  test accuracy 97.65%" in stream.plain
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l"), "the cursor is back"


def test_the_bar_follows_what_ends_first() -> None:
    stream = Stream(terminal=True)
    with ConsoleMonitor(epochs=10, seconds=8.0, stream=stream) as monitor:
        monitor.progress(progress(1.0, time=6.0))
        monitor.progress(progress(9.0, time=6.0))
        monitor.progress(progress(10.5, time=9.0))
    drawn = list(dict.fromkeys(re.findall(r"(\d+) %", stream.plain)))
    assert drawn == ["0", "75", "90", "100"]
    assert "epoch 10/10" in stream.plain, "the last tick may reach into an epoch that is not wanted"


def test_nothing_is_said_that_is_not_known() -> None:
    stream = Stream(terminal=True)
    with ConsoleMonitor(epochs=4, stream=stream) as monitor:
        monitor.progress(progress(0.0, loss=math.nan, speed=0.0))
        assert "images/s" not in stream.plain
        assert "nan" not in stream.plain
        monitor.progress(progress(0.5, speed=777.0))
        stream.truncate(0)
        monitor.progress(progress(1.0, speed=0.0))
        assert "777 images/s" in stream.plain, "at the start of an epoch the last speed stays"


def test_no_bar_on_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Stream(terminal=True)
    with ConsoleMonitor(epochs=4, stream=stream) as monitor:
        monitor.progress(progress())
        monitor.record(record())
    assert "\x1b" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


def test_a_stream_that_lacks_characters_or_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    with ConsoleMonitor(stream=stream) as monitor:
        monitor.decision(Decision(2, 3, 2, "not 3 × 2: too little memory"))
    assert stream.buffer.getvalue() == b"2 learners: not 3 x 2: too little memory\n"  # type: ignore[attr-defined]
    monkeypatch.setattr("sys.stdout", None)
    with ConsoleMonitor() as monitor:
        monitor.progress(progress())
        monitor.record(record())


def test_it_can_be_used_again() -> None:
    stream = Stream(terminal=True)
    monitor = ConsoleMonitor(epochs=4, stream=stream)
    for _ in range(2):
        with monitor:
            monitor.progress(progress())
    monitor.close()
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h") == 2


def test_drawing_is_cheap() -> None:
    """It takes the scheduler's time: the processor's, and the best of many, because the machine may be busy."""
    with ConsoleMonitor(epochs=4, stream=Stream(terminal=True)) as monitor:
        monitor.progress(progress())
        best = math.inf
        for number in range(50):
            start = time.thread_time()
            monitor.progress(progress(number / 50))
            best = min(best, time.thread_time() - start)
    assert best < 0.01


# The log


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


def test_a_log_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file: expected a directory to write to\. Received: a file$"):
        JsonLinesMonitor(tmp_path / "file" / "log").progress(progress())


def test_a_log_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = JsonLinesMonitor(tmp_path / "log")
    monitor.progress(progress())

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(DataError, match=r"log: expected to write the log .*\. Received: No space left on device$"):
        monitor.record(record())


@pytest.mark.parametrize("path", [None, 5, b"log"])
def test_a_log_whose_path_is_none(path: Any) -> None:
    with pytest.raises(TypeError, match=r"^JsonLinesMonitor: expected a path, as a str or a pathlib\.Path\. Received"):
        JsonLinesMonitor(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_log_is_a_regular_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe would wait for somebody to read it."""
    os.mkfifo(tmp_path / "pipe")
    for path, received in ((tmp_path / "pipe", "a pipe"), (tmp_path, "a directory")):
        with pytest.raises(DataError, match=rf"^{path}: expected the name of a file to write\. Received: {received}$"):
            JsonLinesMonitor(path).record(record())
    monkeypatch.setenv("HOME", str(tmp_path))
    JsonLinesMonitor("~/log").record(record())
    assert (tmp_path / "log").read_text().count("\n") == 1
