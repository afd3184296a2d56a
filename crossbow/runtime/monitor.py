"""Monitors: told what happens during training, on the caller's thread."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from crossbow.console import printable
from crossbow.files import check_regular, checked_path, make_directory, reason
from crossbow.runtime.results import AnyDecision, Record
from crossbow.types import DataError

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


@dataclass(frozen=True)
class Progress:
    """Where training is."""

    epoch: float
    tasks: int
    time: float
    """Seconds of training since the start of the call."""
    loss: float
    """Moving mean of the training loss."""
    images_per_second: float
    """Since the start of the stretch."""


class Monitor:
    """Override what you want to know."""

    interval: float = 0.25
    """Seconds between two calls of `progress`."""

    def progress(self, progress: Progress) -> None:
        """Called when training begins, and then about every `interval` seconds."""

    def record(self, record: Record) -> None:
        """Called at the end of every epoch (or stretch between tests), after its test."""

    def decision(self, decision: AnyDecision) -> None:
        """Called when numbers of learners have been compared, with learners_per_device="auto", and when they will be
        again; and when learners have been grouped by their speed (`Grouping()`)."""


class JsonLinesMonitor(Monitor):
    """Writes one JSON object a record or decision, each line complete and flushed before the next begins. That of a
    decision has its words as "decision", and its numbers.

    The file begins with the training: until then (a context may refuse its configuration) an older one is left alone.
    Raises DataError, which ends the training, where it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = checked_path("JsonLinesMonitor", path)
        self._begun = False

    def header(self, run: Mapping[str, Any]) -> None:
        """Write a line {"run": …} with what is known of the run before its first record."""
        self._write({"run": dict(run)})

    def progress(self, progress: Progress) -> None:
        self._begin()

    def record(self, record: Record) -> None:
        line = asdict(record)
        test = line.pop("test") or {}
        line.update({f"test_{name}": test.get(name) for name in ("loss", "accuracy", "examples")})
        self._write(line)

    def decision(self, decision: AnyDecision) -> None:
        self._write({"decision": str(decision), **asdict(decision)})

    def _write(self, line: dict[str, Any]) -> None:
        self._begin()
        # JSON has no NaN and no infinity.
        line = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in line.items()}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _begin(self) -> None:
        if not self._begun:
            try:
                check_regular(self.path)
                make_directory(self.path.parent)
                self.path.write_text("")
            except DataError:
                raise
            except (OSError, ValueError) as error:
                raise self._unwritable(error) from error
            self._begun = True

    def _unwritable(self, error: OSError | ValueError) -> DataError:
        return DataError(f"{self.path}: expected to write the log of records. Received: {reason(error)}")


class ConsoleMonitor(Monitor):
    """Tells a person: one line a record and, on a terminal, a progress bar with images/s and loss below them.

    It is a context manager, so that the bar is gone and the cursor back before anything else is printed. There is no
    thread that draws: `progress` does, every `interval` seconds, in about a millisecond of the scheduler's time.
    """

    def __init__(
        self, *, epochs: int | None = None, seconds: float | None = None, stream: TextIO | None = None
    ) -> None:
        """epochs, seconds: how long training lasts, whichever is sooner. stream: where to print; None is stdout, and
        nothing where there is none."""
        self.epochs, self.seconds = epochs, seconds
        self._stream: TextIO | None = sys.stdout if stream is None else stream
        self._terminal = self._stream is not None and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._bar: Bar | None = None
        self._row: TaskID | None = None

    def __enter__(self) -> ConsoleMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def progress(self, progress: Progress) -> None:
        if not self._terminal:
            return
        if self._bar is None:
            self._bar, self._row = self._new_bar()
        assert self._row is not None
        number = min(math.floor(progress.epoch) + 1, self.epochs or math.inf)
        known: dict[str, Any] = {}
        if not math.isnan(progress.loss):
            known["loss"] = f"loss {progress.loss:.4f}"
        if progress.images_per_second:  # none yet at the start of an epoch: the last one's stays
            known["speed"] = f"{progress.images_per_second:,.0f} images/s"
        self._bar.update(
            self._row, completed=self._fraction(progress), description=f"epoch {self._epoch(number)}", **known
        )
        self._bar.refresh()

    def record(self, record: Record) -> None:
        self._print(self.line(record))

    def decision(self, decision: AnyDecision) -> None:
        self._print(str(decision))

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif self._stream is not None:
            print(printable(line, self._stream), file=self._stream, flush=True)

    def line(self, record: Record) -> str:
        """What is printed of a record."""
        parts = [f"epoch {self._epoch(record.epoch)}", f"loss {record.loss:.4f}"]
        if record.test is not None:
            parts.append(f"test loss {record.test.loss:.4f}")
            if record.test.accuracy is not None:
                parts.append(f"test accuracy {record.test.accuracy:.2%}")
        parts += [f"{record.images_per_second:,.0f} images/s", f"{record.time:.1f} s"]
        return "  ".join(parts)

    def _epoch(self, number: float) -> str:
        """The number of an epoch, of how many; a fraction where an epoch was not finished."""
        text = f"{number:.0f}" if number == int(number) else f"{number:.2f}"
        return text if self.epochs is None else f"{text:>{len(str(self.epochs))}}/{self.epochs}"

    def _fraction(self, progress: Progress) -> float:
        """How much of training is done, in [0, 1]."""
        done = 0.0 if self.epochs is None else progress.epoch / self.epochs
        return min(1.0, max(done, 0.0 if self.seconds is None else progress.time / self.seconds))

    def _new_bar(self) -> tuple[Bar, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        row = bar.add_task("", total=1.0, speed="", loss="")
        bar.start()
        return bar, row
