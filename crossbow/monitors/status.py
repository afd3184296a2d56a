"""The state of training as a file, for other processes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossbow.files import checked_path, is_full, make_directory, reason
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.results import LearnerRecord, Record
from crossbow.types import DataError

SILENT_SECONDS = 30.0
"""Time after which an unchanged status of a process on another machine means that the process has ended."""


@dataclass(frozen=True)
class Status:
    """The content of a status file."""

    running: bool
    """Whether the process trains now."""
    epochs: int | None
    seconds: float | None
    """Length of training, whichever is shorter."""
    progress: Progress | None
    """The progress of training; None before the first report."""


class StatusMonitor(Monitor):
    """Writes progress to a JSON file once a second, and the end of training when the monitor is closed.

    The file is replaced atomically. If the disk is full, it stays unchanged, and training continues. Raises DataError,
    which ends the training, if it cannot be written for another reason.
    """

    interval = 1.0

    def __init__(
        self, path: str | os.PathLike[str], *, epochs: int | None = None, seconds: float | None = None
    ) -> None:
        """epochs, seconds: length of training, whichever is shorter."""
        self.path = checked_path("StatusMonitor", path)
        self.epochs, self.seconds = epochs, seconds
        self._progress: Progress | None = None
        self._next = 0.0

    def progress(self, progress: Progress) -> None:
        self._progress = progress
        if time.monotonic() >= self._next:  # other monitors may need it more often
            self._next = time.monotonic() + self.interval
            self._write(running=True)

    def record(self, record: Record) -> None:
        if self._progress is not None:
            self._write(running=True)

    def close(self) -> None:
        """Record the end of training."""
        if self._progress is not None:
            self._write(running=False)

    def _write(self, *, running: bool) -> None:
        progress = None if self._progress is None else asdict(self._progress)
        status = {
            "running": running,
            "process": os.getpid(),
            "machine": platform.node(),
            "epochs": self.epochs,
            "seconds": self.seconds,
            "progress": _finite(progress),
        }
        partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            make_directory(self.path.parent)
            # No fsync, which is slow: the file is useful only while training runs.
            partial.write_text(json.dumps(status), encoding="utf-8")
            os.replace(partial, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            if is_full(error):
                return
            raise DataError(
                f"{self.path}: expected to write the progress of training. Received: {reason(error)}"
            ) from error


def read_status(path: Path) -> Status | None:
    """Read a status file; None if there is none. Raises DataError if it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        changed = path.stat().st_mtime
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected the progress of training (JSON). Received: {reason(error)}") from error
    try:
        return Status(_alive(content, changed), content["epochs"], content["seconds"], _progress(content["progress"]))
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: expected the progress of training. Received: other content") from error


def _progress(content: dict[str, Any] | None) -> Progress | None:
    if content is None:
        return None
    learners = tuple(LearnerRecord(**each) for each in content["learners"])
    loss = math.nan if content["loss"] is None else content["loss"]
    return Progress(
        **{
            **content,
            "loss": loss,
            "learners": learners,
            "doing": tuple(content["doing"]),
            "metrics": tuple(content.get("metrics", ())),
        }
    )


def _alive(content: dict[str, Any], changed: float) -> bool:
    """Whether the process still trains."""
    if not content["running"]:
        return False
    if content["machine"] != platform.node():
        return time.time() - changed < SILENT_SECONDS
    try:
        os.kill(content["process"], 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        pass
    return True


def _finite(value: Any) -> Any:
    """The value with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
