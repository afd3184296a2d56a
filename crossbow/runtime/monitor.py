"""Monitors: told what happens during training, on the caller's thread."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from crossbow.runtime.results import Record


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
        """Called about every `interval` seconds while training."""

    def record(self, record: Record) -> None:
        """Called at the end of every epoch (or stretch between tests), after its test."""


class JsonLinesMonitor(Monitor):
    """Writes one JSON object a record, each line complete and flushed before the next begins."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")

    def record(self, record: Record) -> None:
        line = asdict(record)
        test = line.pop("test") or {}
        line.update({f"test_{name}": test.get(name) for name in ("loss", "accuracy", "examples")})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
