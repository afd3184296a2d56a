"""Records as event files of TensorBoard."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from crossbow.extras import optional_module
from crossbow.files import checked_path, file_error, make_directory
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.results import History, Record

TAGS = {
    "loss": "loss/training",
    "accuracy": "accuracy/training",
    "test_loss": "loss/test",
    "test_accuracy": "accuracy/test",
}
"""Tags of the numbers that share a chart; the others have their names as tags."""
AXES = ("tasks", "test_examples")
"""Numbers of a record that are not written: the step itself, and a constant."""


class TensorBoardMonitor(Monitor):
    """Writes the numbers of every record as scalars to event files, which `tensorboard --logdir DIRECTORY` shows. The
    step is the number of tasks; training and test share a chart.

    Each record is flushed. Every training process writes its own file. If training is resumed from an earlier
    task, TensorBoard discards the later part of earlier files. Files are written by the package tensorboard:
    `pip install 'crossbow[tensorboard]'`. Raises ConfigurationError if it is not installed, and DataError, which ends
    the training, if the directory cannot be written.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = checked_path("TensorBoardMonitor", directory)
        self._events = _package("compat.proto.event_pb2")
        self._summaries = _package("compat.proto.summary_pb2")
        self._files = _package("summary.writer.event_file_writer")
        self._file: Any = None
        self._last: int | None = None
        """The task of the last record, if it is known."""

    def progress(self, progress: Progress) -> None:
        if self._file is None:
            make_directory(self.directory)
            try:
                self._file = self._files.EventFileWriter(str(self.directory))
                start = self._events.SessionLog(status=self._events.SessionLog.START)
                # TensorBoard then discards events of earlier files from this step on. The step 0 would discard nothing.
                self._add((progress.tasks if self._last is None else self._last) + 1, session_log=start)
            except OSError as error:
                raise file_error(error, self.directory, "to write event files") from error

    def record(self, record: Record) -> None:
        numbers = {name: value for name, value in record.numbers().items() if name not in AXES and value is not None}
        values = [
            self._summaries.Summary.Value(tag=TAGS.get(name, name), simple_value=value)
            for name, value in numbers.items()
            if math.isfinite(value)
        ]
        try:
            self._add(record.tasks, summary=self._summaries.Summary(value=values))
        except OSError as error:
            raise file_error(error, self.directory, "to write event files") from error
        self._last = record.tasks

    def state(self) -> int:
        """The task of the last record; 0 before the first."""
        return self._last or 0

    def resume(self, state: Any) -> None:
        """Keep the events that were written before the checkpoint. An interrupted process may have added a record for
        its unfinished epoch."""
        self._last = state

    def take_over(self, history: History) -> None:
        """Begin a new file after the records so far."""
        self._last = history.records[-1].tasks if history.records else 0

    def close(self) -> None:
        """Close the event file, and end the thread that writes it."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _add(self, step: int, **content: object) -> None:
        self._file.add_event(self._events.Event(wall_time=time.time(), step=step, **content))
        self._file.flush()


def _package(module: str) -> Any:
    return optional_module(f"tensorboard.{module}", "TensorBoardMonitor", "tensorboard")
