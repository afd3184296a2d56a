"""Records and progress on a terminal, in a notebook, or in a pipe."""

from __future__ import annotations

import html
import io
import math
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

from crossbow.console import printable
from crossbow.runtime.checkpointing import Written
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.new_view import Departure, NewCoordinator, NewRanks
from crossbow.runtime.results import AnyDecision, LearnerRecord, Record

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

HEADINGS = ("learner", "now", "computing", "averaging", "waiting", "data", "images/s", "‖w−z‖/‖z‖")
WIDTH = 100
"""Columns of the text in a notebook."""


class ConsoleMonitor(Monitor):
    """Prints one line per record and, on a terminal or in a notebook, a progress bar with images/s and loss, and a row
    for each learner below it: its current activity, its shares of the time, its rate and its distance from the average.

    It is a context manager, which removes the bar and restores the cursor before anything else is printed. It has no
    thread: `progress` draws the bar every `interval` seconds, in a few milliseconds of the scheduler's time. In a
    notebook, everything is in the output of one cell, which is updated.
    """

    def __init__(
        self,
        *,
        epochs: int | None = None,
        seconds: float | None = None,
        tasks: range | None = None,
        stream: TextIO | None = None,
    ) -> None:
        """epochs, seconds: length of training, whichever is shorter. tasks: the tasks of one call; the bar then shows
        the progress of this call instead of that of all epochs. stream: output; None means the notebook or else stdout,
        if it exists."""
        self.epochs, self.seconds, self.tasks = epochs, seconds, tasks
        self._stream: TextIO | None = sys.stdout if stream is None else stream
        self._terminal = self._stream is not None and draws_bars(self._stream)
        self._notebook = stream is None and in_notebook()
        if not (self._terminal or self._notebook):
            self.interval = math.inf  # there is no bar to draw
        self._view: _View | None = None
        self._loss = self._speed = ""

    def __enter__(self) -> ConsoleMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def progress(self, progress: Progress) -> None:
        if self._terminal or self._notebook:
            self._shown().update(self._picture(progress))

    def record(self, record: Record) -> None:
        self._print(self.line(record))

    def decision(self, decision: AnyDecision) -> None:
        self._print(str(decision))

    def left(self, departure: Departure) -> None:
        self._print(str(departure))

    def joined(self, event: NewRanks) -> None:
        self._print(str(event))

    def coordinator(self, event: NewCoordinator) -> None:
        self._print(str(event))

    def checkpoint(self, written: Written) -> None:
        if written.error:
            self._print(written.warning)

    def _shown(self) -> _View:
        if self._view is None:
            self._view = _CellView() if self._notebook else _TerminalView(self._stream or sys.stdout)
        return self._view

    def _print(self, line: str) -> None:
        if self._view is not None or self._notebook:
            self._shown().print(line)
        elif self._stream is not None:
            print(printable(line, self._stream), file=self._stream, flush=True)

    def line(self, record: Record) -> str:
        """The text printed for a record."""
        parts = [f"epoch {self._epoch(record.epoch)}", f"loss {record.loss:.4f}"]
        if record.test is not None:
            parts.append(f"test loss {record.test.loss:.4f}")
            if record.test.accuracy is not None:
                parts.append(f"test accuracy {record.test.accuracy:.2%}")
            parts += [f"{name} {value:.4f}" for name, value in record.test.metrics.items()]
        parts += [f"{record.images_per_second:,.0f} images/s", f"{record.time:.1f} s"]
        return "  ".join(parts)

    def _epoch(self, number: float) -> str:
        """An epoch's number out of the total; a fraction if the epoch is incomplete."""
        text = f"{number:.0f}" if number == int(number) else f"{number:.2f}"
        return text if self.epochs is None else f"{text:>{len(str(self.epochs))}}/{self.epochs}"

    def _fraction(self, progress: Progress) -> float:
        """Fraction of training that is done, in [0, 1]."""
        done = 0.0 if self.epochs is None else progress.epoch / self.epochs
        if self.tasks:
            done = (progress.tasks - self.tasks.start) / len(self.tasks)
        return min(1.0, max(done, 0.0 if self.seconds is None else progress.time / self.seconds))

    def _picture(self, progress: Progress) -> RenderableType:
        """The bar and the rows of the learners."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        if not math.isnan(progress.loss):
            self._loss = f"loss {progress.loss:.4f}"
        if progress.images_per_second:  # unknown at the start of an epoch, where the last value is kept
            self._speed = f"{progress.images_per_second:,.0f} images/s"
        fraction = self._fraction(progress)
        number = min(math.floor(progress.epoch) + 1, self.epochs or math.inf)
        left = "-:--:--" if fraction == 0 else _clock(progress.time * (1 - fraction) / fraction)
        bar = Table.grid(padding=(0, 1), expand=True)
        for column in range(6):
            bar.add_column(ratio=1 if column == 1 else None, no_wrap=True)
        bar.add_row(
            f"epoch {self._epoch(number)}",
            ProgressBar(total=1.0, completed=fraction),
            f"{fraction * 100:>3.0f} %",
            self._speed,
            self._loss,
            f"{_clock(progress.time)} left {left}",
        )
        rows = learner_table(progress.learners, progress.doing)
        return bar if rows is None else Group(bar, rows)


def learner_table(learners: Sequence[LearnerRecord], doing: Sequence[str]) -> Table | None:
    """A row for each learner; None if no learner is known. doing: current activity of each learner; empty if
    unknown."""
    from rich.table import Table

    if not learners:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("learner", "now") else "right", no_wrap=True)
    now = doing if len(doing) == len(learners) else [""] * len(learners)
    for learner, what in zip(learners, now, strict=True):
        shares = (learner.computing, learner.averaging, learner.waiting, learner.data)
        table.add_row(
            str(learner.learner),
            what,
            *(f"{share:.0%}" for share in shares),
            f"{learner.images_per_second:,.0f}",
            "–" if learner.distance is None else f"{learner.distance:.2e}",
        )
    return table


def draws_bars(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which a bar can be drawn.

    `mpirun` gives its processes a terminal, even if its own output goes to a file or a pipe. There, the output of the
    parent process, which is `mpirun` for rank 0, decides.
    """
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return True
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:  # not Linux, or a daemon of another user
        return False


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class _View(Protocol):
    """A display of lines and progress."""

    def print(self, line: str) -> None: ...

    def update(self, picture: RenderableType) -> None: ...

    def close(self) -> None: ...


class _Printable:
    """A stream that accepts characters that its encoding does not have."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text, self._stream))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _TerminalView:
    """Lines, and progress below them, which is drawn in place."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            console=Console(file=cast("TextIO", _Printable(stream))),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def print(self, line: str) -> None:
        self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def update(self, picture: RenderableType) -> None:
        self._live.update(picture, refresh=True)

    def close(self) -> None:
        self._live.stop()


class _CellView:
    """Lines and progress in the output of one cell of a notebook."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        cell: Any = HTML  # IPython is typed in part
        show: Any = display
        self._html = cell
        self._lines: list[str] = []
        self._progress = ""
        self._output = show(self._html(""), display_id=True)

    def print(self, line: str) -> None:
        self._lines.append(line)
        self._draw()

    def update(self, picture: RenderableType) -> None:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=WIDTH, force_jupyter=False, force_terminal=False)
        with console.capture() as capture:
            console.print(picture)
        self._progress = capture.get()
        self._draw()

    def close(self) -> None:
        """Remove the progress, and keep the lines."""
        self._progress = ""
        self._draw()

    def _draw(self) -> None:
        text = "\n".join([*self._lines, self._progress])
        self._output.update(self._html(f"<pre>{html.escape(text)}</pre>"))
