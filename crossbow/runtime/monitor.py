"""Monitors, which receive events of training on the caller's thread."""

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
from crossbow.data.examples import BadExample
from crossbow.files import check_regular, checked_path, make_directory, reason
from crossbow.runtime.checkpointing import Written
from crossbow.runtime.results import AnyDecision, Record
from crossbow.types import CrossbowError, DataError, MonitorError, Phase

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


@dataclass(frozen=True)
class Progress:
    """State of training."""

    epoch: float
    tasks: int
    time: float
    """Seconds of training since the start of the call."""
    loss: float
    """Moving mean of the training loss."""
    images_per_second: float
    """Throughput since the start of the stretch."""


class Monitor:
    """Base class of monitors. Override the methods for the events of interest.

    An exception in a monitor ends the training. It reaches the caller as a `MonitorError`, unless it is a
    `CrossbowError` itself.
    """

    interval: float = 0.25
    """Seconds between two calls of `progress`."""
    _request = ""

    def end_training(self, reason: str) -> None:
        """End the training: after the record or, if called in `progress`, after the tick. `History.stopped` is then
        "monitor", and `History.message` has the reason. Call it in a monitor's own methods."""
        self._request = reason

    def progress(self, progress: Progress) -> None:
        """Called when training begins, and then about every `interval` seconds."""

    def record(self, record: Record) -> None:
        """Called at the end of every epoch (or stretch between tests), after its test."""

    def bad_example(self, phase: Phase, example: BadExample) -> None:
        """Called once for each example that was left out, with `SystemConf(on_bad_record="skip")`."""

    def checkpoint(self, written: Written) -> None:
        """Called after a checkpoint was written, or could not be written."""

    def state(self) -> Any:
        """The state that a checkpoint contains, as a JSON value; None if there is none."""
        return None

    def resume(self, state: Any) -> None:
        """Called with the state in a checkpoint, before training continues from it."""

    def decision(self, decision: AnyDecision) -> None:
        """Called when the auto-tuner (learners_per_device="auto") has compared numbers of learners, and when it starts
        a new search; and when learners have been grouped by speed (`Grouping()`)."""

    def close(self) -> None:
        """Called when the context is closed."""


def tell(monitor: Monitor, event: str, *arguments: object) -> str:
    """Call a monitor's method. Returns "", or why the monitor ends the training.

    Raises MonitorError, which names the monitor, if the method raises; a CrossbowError keeps its type, and its note has
    the name.
    """
    name = type(monitor).__name__
    try:
        getattr(monitor, event)(*arguments)
    except CrossbowError as error:
        error.add_note(f"raised by the monitor {name} in `{event}`")
        raise
    except Exception as error:
        raise MonitorError(f"the monitor {name} failed in `{event}`: {type(error).__name__}: {error}") from error
    reason, monitor._request = monitor._request, ""
    return f"{name}: {reason}" if reason else ""


class JsonLinesMonitor(Monitor):
    """Writes one JSON object per record or decision. Each line is flushed before the next begins. The object of a
    decision has its text as "decision", and its numbers.

    The file is created when training begins: before that (a context may reject its configuration), an existing file is
    kept. Raises DataError, which ends the training, if it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = checked_path("JsonLinesMonitor", path)
        self._begun = False

    def header(self, run: Mapping[str, Any]) -> None:
        """Write a line {"run": …} with a description of the run before its first record."""
        self._write({"run": dict(run)})

    def note(self, **values: Any) -> None:
        """Write a line with these values, as when a run is resumed."""
        self._write(values)

    def progress(self, progress: Progress) -> None:
        self._begin()

    def record(self, record: Record) -> None:
        self._write(record.numbers())

    def decision(self, decision: AnyDecision) -> None:
        self._write({"decision": str(decision), **asdict(decision)})

    def checkpoint(self, written: Written) -> None:
        if written.error:
            self._write({"checkpoint": str(written.path), "error": written.error})

    def state(self) -> int:
        """Length of the file in bytes."""
        return self.path.stat().st_size if self._begun else 0

    def resume(self, state: Any) -> None:
        """Cut the file after the lines that were written before the checkpoint."""
        try:
            check_regular(self.path)
            make_directory(self.path.parent)
            with self.path.open("ab") as file:
                file.truncate(min(state, file.tell()))
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error
        self._begun = True

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
    """Prints one line per record and, on a terminal, a progress bar with images/s and loss below them.

    It is a context manager, which removes the bar and restores the cursor before anything else is printed. It has no
    thread: `progress` draws the bar every `interval` seconds, in about a millisecond of the scheduler's time.
    """

    def __init__(
        self, *, epochs: int | None = None, seconds: float | None = None, stream: TextIO | None = None
    ) -> None:
        """epochs, seconds: length of training, whichever is shorter. stream: output; None is stdout, if there is
        one."""
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
        """Remove the bar."""
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
        if progress.images_per_second:  # unknown at the start of an epoch, where the last value is kept
            known["speed"] = f"{progress.images_per_second:,.0f} images/s"
        self._bar.update(
            self._row, completed=self._fraction(progress), description=f"epoch {self._epoch(number)}", **known
        )
        self._bar.refresh()

    def record(self, record: Record) -> None:
        self._print(self.line(record))

    def decision(self, decision: AnyDecision) -> None:
        self._print(str(decision))

    def checkpoint(self, written: Written) -> None:
        if written.error:
            self._print(f"no checkpoint after {written.tasks:,} tasks, training goes on: {written.error}")

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif self._stream is not None:
            print(printable(line, self._stream), file=self._stream, flush=True)

    def line(self, record: Record) -> str:
        """The text printed for a record."""
        parts = [f"epoch {self._epoch(record.epoch)}", f"loss {record.loss:.4f}"]
        if record.test is not None:
            parts.append(f"test loss {record.test.loss:.4f}")
            if record.test.accuracy is not None:
                parts.append(f"test accuracy {record.test.accuracy:.2%}")
        parts += [f"{record.images_per_second:,.0f} images/s", f"{record.time:.1f} s"]
        return "  ".join(parts)

    def _epoch(self, number: float) -> str:
        """An epoch's number out of the total; a fraction if the epoch is incomplete."""
        text = f"{number:.0f}" if number == int(number) else f"{number:.2f}"
        return text if self.epochs is None else f"{text:>{len(str(self.epochs))}}/{self.epochs}"

    def _fraction(self, progress: Progress) -> float:
        """Fraction of training that is done, in [0, 1]."""
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
