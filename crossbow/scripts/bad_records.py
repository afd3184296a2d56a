"""The list of the examples that a training script has left out."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from crossbow import History, Monitor
from crossbow.data.examples import BadExample
from crossbow.files import reason
from crossbow.types import DataError, Phase


class BadRecordsMonitor(Monitor):
    """Writes one JSON object for each example that was left out: phase, index, source and reason.

    The file is created with its first example. Raises DataError, which ends the training, if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[Phase] = Counter()
        """Number of examples that were left out, by phase."""

    def prepare(self) -> None:
        """Remove the file of an earlier run. Raises DataError."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def bad_example(self, phase: Phase, example: BadExample) -> None:
        line = {"phase": phase.value, "index": example.index, "source": example.source, "reason": example.reason}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise self._unwritable(error) from error
        self.counts[phase] += 1

    def state(self) -> dict[str, Any]:
        """The number of examples of each phase, and the length of the file in bytes."""
        size = self.path.stat().st_size if self.counts else 0
        return {"bytes": size, "counts": {phase.name: count for phase, count in self.counts.items()}}

    def resume(self, state: Any) -> None:
        """Truncate the file to the examples that were found before the checkpoint."""
        self.counts = Counter({Phase[name]: count for name, count in state["counts"].items()})
        if not self.counts:
            self.prepare()
            return
        try:
            with self.path.open("ab") as file:
                file.truncate(min(state["bytes"], file.tell()))
        except OSError as error:
            raise self._unwritable(error) from error

    def take_over(self, history: History) -> None:
        """Count the examples that are in the file."""
        with contextlib.suppress(OSError, ValueError, KeyError), self.path.open(encoding="utf-8") as file:
            self.counts = Counter(Phase(json.loads(line)["phase"]) for line in file)

    def summary(self) -> str:
        """The text to print at the end of training; empty if no examples were left out."""
        names = {Phase.TRAIN: "training", Phase.CHECK: "test"}
        parts = [f"{self.counts[phase]:,} {name}" for phase, name in names.items() if self.counts[phase]]
        what = "example" if self.counts.total() == 1 else "examples"
        return f"left out {' and '.join(parts)} {what} that cannot be decoded: {self.path}" if parts else ""

    def _unwritable(self, error: OSError) -> DataError:
        return DataError(f"{self.path}: expected to write the list of bad examples. Received: {reason(error)}")
