"""Records as a log with one JSON object per line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from crossbow.files import Lines, check_regular, checked_path, file_error, make_directory
from crossbow.runtime.checkpointing import Written
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.new_view import Departure, NewCoordinator, NewRanks
from crossbow.runtime.results import AnyDecision, History, Record
from crossbow.types import DataError


class JsonLinesMonitor(Monitor):
    """Writes one JSON object per record or decision. Each line is flushed before the next begins. The object of a
    decision has its text as "decision", and its numbers.

    The file is created when training begins: before that (a context may reject its configuration), an existing file is
    kept. While the disk is full, lines wait in memory for the next one. Raises DataError, which ends the training, if
    it cannot be written for another reason, and when the monitor is closed while lines wait.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = checked_path("JsonLinesMonitor", path)
        self._begun = False
        self._lines = Lines(self.path)

    def header(self, run: Mapping[str, Any]) -> None:
        """Write a line {"run": …} with a description of the run before its first record."""
        self._write({"run": dict(run)})

    def note(self, **values: Any) -> None:
        """Write a line with these values, for example when a run is resumed."""
        self._write(values)

    def progress(self, progress: Progress) -> None:
        self._begin()

    def record(self, record: Record) -> None:
        self._write({**record.numbers(), "learners": [asdict(each) for each in record.learners]})

    def decision(self, decision: AnyDecision) -> None:
        self._write({"decision": str(decision), **asdict(decision)})

    def left(self, departure: Departure) -> None:
        self._write({"left": str(departure), **asdict(departure)})

    def joined(self, event: NewRanks) -> None:
        self._write({"joined": str(event), **asdict(event)})

    def coordinator(self, event: NewCoordinator) -> None:
        self._write({"coordinator": str(event), **asdict(event)})

    def checkpoint(self, written: Written) -> None:
        if written.error:
            self._write({"checkpoint": str(written.path), "error": written.error})

    def state(self) -> int:
        """Length of the file in bytes, including the lines that wait."""
        return self.path.stat().st_size + self._lines.waiting if self._begun else 0

    def resume(self, state: Any) -> None:
        """Truncate the file after the lines that were written before the checkpoint."""
        try:
            check_regular(self.path)
            make_directory(self.path.parent)
            with self.path.open("ab") as file:
                file.truncate(min(state, file.tell()))
        except DataError:
            raise
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error
        self._begun = True

    def take_over(self, history: History) -> None:
        """Continue after the last whole line of the file, if it exists, and add the records that it lacks. A record
        that only the lost rank knew of, and the lines after it, are removed: training goes on from before it."""
        last = history.records[-1].tasks if history.records else math.inf  # earlier calls may have records
        kept, written = 0, 0
        try:
            text = self.path.read_bytes() if check_regular(self.path) else b""
            for line in text[: text.rfind(b"\n") + 1].splitlines(keepends=True):
                values = json.loads(line)
                tasks = values["tasks"] if "epoch" in values else 0
                if tasks > last:
                    break
                kept, written = kept + len(line), max(written, tasks)
        except DataError:
            raise
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error
        self.resume(kept)
        for record in history.records:
            if record.tasks > written:
                self.record(record)

    def _write(self, line: dict[str, Any]) -> None:
        self._begin()
        # JSON has no NaN and no infinity.
        line = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in line.items()}
        try:
            self._lines.add((json.dumps(line) + "\n").encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        try:
            self._lines.finish()
        except OSError as error:
            raise self._unwritable(error) from error

    def _begin(self) -> None:
        if not self._begun:
            try:
                check_regular(self.path)
                make_directory(self.path.parent)
                self.path.write_bytes(b"")
            except DataError:
                raise
            except (OSError, ValueError) as error:
                raise self._unwritable(error) from error
            self._begun = True

    def _unwritable(self, error: OSError | ValueError) -> DataError:
        return file_error(error, self.path, "to write the log of records")
