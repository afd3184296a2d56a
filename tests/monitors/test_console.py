"""Records and progress on terminals, in pipes and in notebooks."""

from __future__ import annotations

import io
import math
import os
import re
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import ConsoleMonitor, Record, TestResult
from crossbow.cluster.members import Lost, Rank
from crossbow.monitors.console import draws_bars, learner_table
from crossbow.runtime.monitor import Progress
from crossbow.runtime.new_view import Departure, NewCoordinator, NewRanks
from crossbow.runtime.results import LearnerRecord
from crossbow.runtime.tuner import Decision

TESTED = TestResult(loss=0.25, accuracy=0.9765, examples=100)
LEARNERS = (
    LearnerRecord(0, 0.75, 0.1, 0.05, 0.1, 1234.5, 0.00123),
    LearnerRecord(1, 0.5, 0.25, 0.25, 0.0, 1000.0, None),
)


def record(epoch: float = 3.0, test: TestResult | None = TESTED) -> Record:
    return Record(epoch, 100, 12.34, 0.5, None, 1234.5, 0.1, test)


def progress(epoch: float = 1.5, *, time: float = 6.0, loss: float = 0.5, speed: float = 4321.0) -> Progress:
    return Progress(epoch, 100, time, loss, speed)


class Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def test_ranks_that_left_or_joined_have_a_line() -> None:
    stream, rank = Stream(terminal=False), Rank(1, "node2")
    with ConsoleMonitor(epochs=12, stream=stream) as monitor:
        monitor.left(Departure(1, 1, 2, 20, 60, 0.5, True, (Lost(rank, "killed"),)))
        monitor.joined(NewRanks(2, 2, 4, 30, 80, 0.25, True, (rank,)))
        monitor.coordinator(NewCoordinator(rank, 3, 40, 100))
    left, joined, coordinator = stream.plain.splitlines()
    assert coordinator == "rank 1 (node2) is now rank 0, which decides and writes the files"
    assert left.startswith("rank 1 (node2) left: killed. Training goes on after task 60")
    assert joined.startswith("rank 1 (node2) joined. Training goes on after task 80")


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


def test_other_metrics_follow_the_accuracy() -> None:
    tested = TestResult(0.25, 0.5, 10, {"top-5": 0.875})
    line = ConsoleMonitor(stream=Stream(terminal=False)).line(record(7.0, tested))
    assert "  test accuracy 50.00%  top-5 0.8750  1,234 images/s" in line


def test_a_bar_on_a_terminal() -> None:
    stream = Stream(terminal=True)
    with ConsoleMonitor(epochs=4, stream=stream) as monitor:
        monitor.progress(progress(1.0))
        monitor.record(record())
    assert re.search(r"epoch 2/4 ━+.* 25 % 4,321 images/s loss 0\.5000 0:00:06 left 0:00:18", stream.plain)
    assert "epoch 3/4  loss 0.5000  test loss 0.2500  test accuracy 97.65%" in stream.plain
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l"), "the cursor is back"


def test_the_bar_follows_what_ends_first() -> None:
    stream = Stream(terminal=True)
    with ConsoleMonitor(epochs=10, seconds=8.0, stream=stream) as monitor:
        monitor.progress(progress(1.0, time=6.0))
        monitor.progress(progress(9.0, time=6.0))
        monitor.progress(progress(10.5, time=9.0))
    drawn = list(dict.fromkeys(re.findall(r"(\d+) %", stream.plain)))
    assert drawn == ["75", "90", "100"]
    assert "epoch 10/10" in stream.plain, "the last tick may reach into an epoch that is not wanted"


def test_the_bar_without_a_number_of_epochs() -> None:
    stream = Stream(terminal=True)
    with ConsoleMonitor(seconds=8.0, stream=stream) as monitor:
        monitor.progress(progress(2.5, time=2.0))
    assert "epoch 3 " in stream.plain
    assert " 25 % " in stream.plain


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


@pytest.mark.parametrize(
    ("output", "bar"),
    [("/dev/pts/3", True), ("/dev/tty1", True), ("/dev/null", False), ("pipe:[7]", False), (None, False)],
)
def test_a_bar_where_mpirun_has_a_terminal(monkeypatch: pytest.MonkeyPatch, output: str | None, bar: bool) -> None:
    def readlink(path: str) -> str:
        assert path == f"/proc/{os.getppid()}/fd/1"
        if output is None:
            raise PermissionError
        return output

    monkeypatch.setattr("os.readlink", readlink)
    assert draws_bars(Stream(terminal=True))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert draws_bars(Stream(terminal=True)) is bar
    assert not draws_bars(Stream(terminal=False))


def test_a_terminal_that_lacks_characters() -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    stream = Terminal(io.BytesIO(), "cp1252")
    with ConsoleMonitor(epochs=4, stream=stream) as monitor:
        monitor.progress(replace(progress(1.0), learners=LEARNERS))
        monitor.record(record())
    stream.flush()
    shown = stream.buffer.getvalue().decode("cp1252")  # type: ignore[attr-defined]
    assert "epoch 3/4  loss 0.5000" in shown
    assert "|w-z|/|z|" in shown


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


def test_a_row_for_each_learner() -> None:
    stream = Stream(terminal=True)
    with ConsoleMonitor(epochs=4, stream=stream) as monitor:
        monitor.progress(replace(progress(), learners=LEARNERS, doing=("computing", "waiting")))
        monitor.progress(replace(progress(), learners=LEARNERS, doing=("averaging",)))
    lines = [" ".join(line.split()) for line in stream.plain.splitlines()]
    assert "learner now computing averaging waiting data images/s ‖w−z‖/‖z‖" in lines
    assert "0 computing 75% 10% 5% 10% 1,234 1.23e-03" in lines
    assert "1 waiting 50% 25% 25% 0% 1,000 –" in lines
    assert "1 50% 25% 25% 0% 1,000 –" in lines, "what they do is not known for all"
    assert learner_table((), ()) is None


class Cell:
    """The output of a notebook's cell, which is displayed once and updated."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, content: str, display_id: bool) -> Cell:
        assert display_id
        self.shown.append(content)
        return self

    def update(self, content: str) -> None:
        self.shown.append(content)


def test_a_notebook_has_one_cell_that_is_updated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell, shells = Cell(), 0

    class ZMQInteractiveShell:
        """The class of a notebook's shell."""

    def display(content: str, display_id: bool) -> Cell:
        nonlocal shells
        shells += 1
        return cell.display(content, display_id)

    notebook: Any = SimpleNamespace(get_ipython=ZMQInteractiveShell)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    with ConsoleMonitor(epochs=4) as monitor:
        monitor.progress(replace(progress(1.0), learners=LEARNERS))
        assert "epoch 2/4" in cell.shown[-1]
        assert re.search(r"1,234 +1.23e-03", cell.shown[-1])
        monitor.record(record())
        assert re.search(r"^<pre>epoch 3/4  loss .*\nepoch 2/4", cell.shown[-1]), "lines, and progress below"
    assert cell.shown[-1] == f"<pre>{monitor.line(record())}\n</pre>", "the bar is removed"
    assert shells == 1
    assert capsys.readouterr().out == ""
