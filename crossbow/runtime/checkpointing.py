"""The times at which a run writes checkpoints, and the thread that writes them while training continues."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossbow.clock import now
from crossbow.conf import Domain, configuration, refuse, setting
from crossbow.domains import Flag, Integer
from crossbow.files import checked_path, file_error, reason
from crossbow.runtime.checkpoint import checkpoint_files, checkpoint_path, write_checkpoint
from crossbow.timeline.recorder import CHECKPOINTS, Recorder
from crossbow.types import Array, DataError

SECONDS_BETWEEN_EPOCHS, SECONDS_BETWEEN = 60.0, 600.0
"""Interval "auto": minimum number of seconds between two checkpoints at ends of epochs, and between two after any
task."""
SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}


@dataclass(frozen=True)
class Interval(Domain):
    """Intervals of checkpoints: a number and its unit, "auto" or "none"."""

    @property
    def allowed(self) -> str:
        return "a number of tasks, epochs, seconds, minutes or hours, as '500tasks' or '10minutes', 'auto' or 'none'"

    @property
    def placeholder(self) -> str:
        return "INTERVAL"

    def canonical(self, value: Any) -> str:
        text = value.replace(" ", "") if isinstance(value, str) else ""
        if text not in ("auto", "none"):
            parse_interval(text)
        return text

    def read(self, text: str) -> str:
        return self.canonical(text)


def parse_interval(text: str) -> tuple[float, str]:
    """Number and unit of an interval; time is in seconds. Raises ValueError.

    >>> parse_interval("10minutes"), parse_interval("1epoch")
    ((600.0, 'seconds'), (1, 'epochs'))
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(task|epoch|second|minute|hour)s?", text)
    if found is None:
        raise ValueError(text)
    unit = found[2] + "s"
    number = float(found[1]) * SECONDS[unit] if unit in SECONDS else int(found[1])
    if number <= 0:
        raise ValueError(text)
    return number, "seconds" if unit in SECONDS else unit


@configuration
class Checkpoints:
    """Checkpoints of training: their directory, and how often they are written.

    The directory gets the newest checkpoints as `checkpoints/TASKS.safetensors`, the base model of the newest one as
    `model.safetensors`, and the base model with the best test accuracy as `best.safetensors`. Learners pause while
    vectors are copied; a thread writes the files. At its end, training always writes a checkpoint.

    A checkpoint that cannot be written, for example on a full disk, does not end training: monitors are informed, older
    checkpoints are kept, and the next one is written at its time.
    """

    directory: str | Path = field(kw_only=False)
    """Directory of the run. It is created when needed."""
    interval: str = setting(Interval(), default="auto", option="checkpoint-interval")
    """The training that a killed process may lose, as 500tasks or 10minutes: a checkpoint is begun after each half of
    it, and training waits if its file is not complete after the next half; 2epochs: every two epochs; auto: at the ends
    of epochs, but not within a minute of the last one, and every ten minutes; none: no checkpoints, only models."""
    keep: int = setting(Integer(at_least=1), default=3)
    """Number of checkpoints to keep; older ones are deleted."""
    overwrite: bool = setting(Flag(), default=False)
    """Whether to delete the checkpoints and models of an older run in the directory; otherwise it is an error to begin
    a new run there."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "directory", checked_path("Checkpoints", self.directory))
        except TypeError:
            raise refuse(self, "directory", self.directory, "a path, as a str or a pathlib.Path") from None

    @property
    def path(self) -> Path:
        """The directory."""
        return Path(self.directory)

    @property
    def checkpoint_directory(self) -> Path:
        """The directory of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def model_path(self) -> Path:
        """The base model of the newest checkpoint."""
        return self.path / "model.safetensors"

    @property
    def best_path(self) -> Path:
        """The base model with the best test accuracy."""
        return self.path / "best.safetensors"


@dataclass(frozen=True)
class Written:
    """The end of writing a checkpoint."""

    path: Path
    tasks: int
    """Number of tasks before the checkpoint."""
    seconds: float
    """Duration of writing, during which training continued."""
    error: str = ""
    """The reason why the checkpoint could not be written; empty if it was written."""

    @property
    def warning(self) -> str:
        """A sentence about a checkpoint that could not be written."""
        return f"no checkpoint after {self.tasks:,} tasks, training goes on: {self.error}"


class CheckpointWriter:
    """Decides when a run needs a checkpoint, and writes it in a separate thread."""

    def __init__(
        self,
        settings: Checkpoints,
        write_model: Callable[[Path, Mapping[str, Array]], None],
        recorder: Recorder | None = None,
    ) -> None:
        """write_model: writes a model's variables to a file; raises DataError."""
        self._recorder = recorder or Recorder()
        self.settings, self._write_model = settings, write_model
        self._number, self._unit = 0.0, settings.interval
        if self._unit not in ("auto", "none"):
            self._number, self._unit = parse_interval(settings.interval)
        self._last_tasks, self._last_time = 0, time.monotonic()
        self._is_first = True
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = 0
        self._done = threading.Condition()
        self._news: list[Written] = []
        self._late_best: tuple[Mapping[str, Array], int] | None = None
        """The best model, if it could not be written, and the number of tasks before it. Used by the thread only."""

    @property
    def writes_checkpoints(self) -> bool:
        return self._unit != "none"

    def prepare(self) -> None:
        """Begin a new run in the directory. Raises DataError if it has checkpoints or models, unless they may be
        deleted."""
        settings = self.settings
        checkpoints = checkpoint_files(settings.checkpoint_directory)
        older = [*checkpoints, *(path for path in (settings.model_path, settings.best_path) if path.is_file())]
        if older and not settings.overwrite:
            advice = "resume that run, overwrite it" if checkpoints else "replace it with overwrite=True"
            raise DataError(
                f"{settings.path}: expected a directory without checkpoints and models, for a new run. Received: one "
                f"with {older[0].name}; {advice}, or use another directory"
            )
        for path in older:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise file_error(error, path, "a file to delete") from error

    def begin(self, tasks: int) -> None:
        """Count intervals from this number of tasks and from the current time."""
        self._last_tasks, self._last_time = tasks, time.monotonic()

    def is_due(self, tasks: int) -> bool:
        """Whether to write a checkpoint after this number of tasks, between two ends of epochs.

        An interval of tasks or time bounds the training that a killed process loses. While a file is being written, the
        newest complete file is the previous one, so checkpoints follow each other after half of the interval."""
        seconds = time.monotonic() - self._last_time
        if self._unit == "tasks":
            return tasks - self._last_tasks >= self._number / 2
        if self._unit == "seconds":
            return seconds >= self._number / 2
        return self._unit == "auto" and seconds >= SECONDS_BETWEEN and not self._pending

    def is_due_at_epoch(self, epoch: int, tasks: int) -> bool:
        """Whether to write a checkpoint at the end of this epoch, counted from 1."""
        if self._unit == "epochs":
            return epoch % int(self._number) == 0
        late = self._is_first or time.monotonic() >= self._last_time + SECONDS_BETWEEN_EPOCHS
        return self.is_due(tasks) or (self._unit == "auto" and late and not self._pending)

    def write(self, tensors: Mapping[str, Array], state: Mapping[str, Any], model: Mapping[str, Array]) -> None:
        """Write a checkpoint and the base model in the thread. The arrays must not change; the state is read at once.
        If an earlier checkpoint is still being written, wait for it. state: includes the number of tasks as "tasks"."""
        self.wait()
        tasks: int = state["tasks"]
        self.begin(tasks)
        self._is_first = False
        text = json.dumps(state)
        self._submit(lambda: self._news.append(self._write(tasks, tensors, text, model)))

    def write_best(self, model: Mapping[str, Array], tasks: int) -> None:
        """Write the best model in the thread. The arrays must not change. tasks: number of tasks before it."""

        def write() -> None:
            written = self._write_or_note(self.settings.best_path, model, tasks)
            self._late_best = None if written else (model, tasks)

        self._submit(write)

    def write_last(self, model: Mapping[str, Array], tasks: int) -> None:
        """Write the base model, without a checkpoint. tasks: number of tasks before it."""
        self._submit(lambda: self._write_or_note(self.settings.model_path, model, tasks))

    def wait(self) -> None:
        """Wait until everything is written."""
        with self._done:
            self._done.wait_for(lambda: not self._pending)

    def take_news(self) -> list[Written]:
        """The files written since the last call."""
        news = []
        while self._news:
            news.append(self._news.pop(0))
        return news

    def close(self) -> None:
        """Finish writing, and end the thread."""
        self.wait()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _submit(self, job: Callable[[], object]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="crossbow-checkpoints", daemon=True)
            self._thread.start()
        with self._done:
            self._pending += 1
        self._jobs.put(job)

    def _run(self) -> None:
        """Body of the thread."""
        while (job := self._jobs.get()) is not None:
            begin = now()
            try:
                job()
                if self._recorder.on:
                    self._recorder.event(CHECKPOINTS, "write", begin)
            finally:
                del job  # its arrays may be large
                with self._done:
                    self._pending -= 1
                    self._done.notify_all()

    def _write(self, tasks: int, tensors: Mapping[str, Array], state: str, model: Mapping[str, Array]) -> Written:
        if self._late_best is not None and self._write_or_note(self.settings.best_path, *self._late_best):
            self._late_best = None
        path, began = checkpoint_path(self.settings.checkpoint_directory, tasks), time.perf_counter()
        try:
            write_checkpoint(path, tensors, state)
            self._write_model(self.settings.model_path, model)
        except (DataError, OSError, MemoryError) as error:
            # The model is smaller, and may still fit on a disk that is too full for the checkpoint.
            with contextlib.suppress(DataError, OSError, MemoryError):
                self._write_model(self.settings.model_path, model)
            return Written(path, tasks, time.perf_counter() - began, reason(error))
        for old in checkpoint_files(self.settings.checkpoint_directory)[self.settings.keep :]:
            with contextlib.suppress(OSError):  # tried again after the next checkpoint
                old.unlink()
        return Written(path, tasks, time.perf_counter() - began)

    def _write_or_note(self, path: Path, model: Mapping[str, Array], tasks: int) -> bool:
        """Write a model, or note the error. Returns whether it was written."""
        began = time.perf_counter()
        try:
            self._write_model(path, model)
        except (DataError, OSError, MemoryError) as error:
            self._news.append(Written(path, tasks, time.perf_counter() - began, reason(error)))
            return False
        return True
