"""Records as a table of comma-separated values."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterable
from typing import Any

from crossbow.files import Lines, check_regular, checked_path, file_error, make_directory
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.results import COLUMNS, History, Record
from crossbow.types import DataError

TASKS = COLUMNS.index("tasks")


class CsvMonitor(Monitor):
    """Writes a header and one row per record (RFC 4180), with the numbers of the record in columns, the last of which
    are the other metrics of tests. A number that is unknown is an empty cell. Each row is flushed before the next
    begins.

    The file is created when training begins. While the disk is full, rows wait in memory for the next one. Raises
    DataError, which ends the training, if it cannot be written for another reason, and when the monitor is closed while
    rows wait.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume: bool = False) -> None:
        """resume: keep the rows of an existing file up to the task at which training begins, for training that
        continues an earlier process; otherwise an existing file is replaced. After `ExecutionContext.resume`, they are
        kept in any case."""
        self.path = checked_path("CsvMonitor", path)
        self._resume, self._begun = resume, False
        self._lines = Lines(self.path)
        self._columns = COLUMNS
        self._last: int | None = None
        """The task of the last record, if it is known."""

    def progress(self, progress: Progress) -> None:
        columns = (*COLUMNS, *(f"test_{name}" for name in progress.metrics))
        if not self._begun or len(columns) > len(self._columns):
            self._columns = columns
            self._begin(progress.tasks)
            self._begun = self._resume = True

    def record(self, record: Record) -> None:
        values = record.numbers()
        try:
            self._lines.add(_text([["" if values.get(name) is None else values[name] for name in self._columns]]))
        except OSError as error:
            raise self._unwritable(error) from error
        self._last = record.tasks

    def state(self) -> int:
        """The task of the last record; 0 before the first."""
        return self._last or 0

    def resume(self, state: Any) -> None:
        """Keep the rows that were written before the checkpoint. An interrupted process may have added one for its
        unfinished epoch."""
        self._resume, self._last = True, state

    def take_over(self, history: History) -> None:
        """Continue after the rows of the file, if it exists, and add the records that it lacks."""
        self._resume = self._begun = True
        self._last = None
        # Without records, rows are of earlier training calls.
        written = self._begin(history.records[-1].tasks if history.records else sys.maxsize)
        self._last = written
        for record in history.records:
            if record.tasks > written:
                self.record(record)

    def close(self) -> None:
        try:
            self._lines.finish()
        except OSError as error:
            raise self._unwritable(error) from error

    def _begin(self, tasks: int) -> int:
        """Returns the task of the last row that is kept; 0 if there is none."""
        try:
            older = check_regular(self.path)
            make_directory(self.path.parent)
            last = tasks if self._last is None else self._last
            kept = self._rows_until(last) if self._resume and older is not None else []
            self.path.write_bytes(_text([self._columns, *kept]))
            return max((int(row[TASKS]) for row in kept), default=0)
        except DataError:
            raise
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error

    def _rows_until(self, tasks: int) -> list[list[str]]:
        """The rows of the existing file whose last task is not later. The file may have more metrics, or fewer."""
        with self.path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            found = tuple(next(rows, ()))
            common = min(len(found), len(self._columns))
            if common < len(COLUMNS) or found[:common] != self._columns[:common]:
                columns = ", ".join(self._columns)
                raise DataError(
                    f"{self.path}: expected a table of records with the columns {columns}. Received: others"
                )
            self._columns = max(found, self._columns, key=len)
            # A killed process may have left half a row.
            whole = [row for row in rows if len(row) == len(found) and int(row[TASKS]) <= tasks]
            return [row + [""] * (len(self._columns) - len(found)) for row in whole]

    def _unwritable(self, error: OSError | ValueError) -> DataError:
        return file_error(error, self.path, "to write the table of records")


def _text(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
