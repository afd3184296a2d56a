"""Output directories of runs, without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crossbow import JsonLinesMonitor, Record, TestResult


def record(epoch: float, accuracy: float | None, *, seconds: float = 2.0, loss: float = 0.5) -> Record:
    """The record of a run with ten tasks an epoch. accuracy: of its test; None without a test."""
    test = None if accuracy is None else TestResult(loss=loss / 2, accuracy=accuracy, examples=50)
    return Record(epoch, int(10 * epoch), seconds * epoch, loss, accuracy, 40.0 / seconds, 0.1, test)


def write_run(
    directory: Path,
    records: Sequence[Record],
    header: dict[str, Any] | None = None,
    description: dict[str, Any] | None = None,
) -> Path:
    """Write the log, as scripts do, and `run.json` if there is a description. Returns the directory."""
    directory.mkdir(parents=True)
    log = JsonLinesMonitor(directory / "log.jsonl")
    log.header({"model": "lenet", "batch_size": 4} | (header or {}))
    for each in records:
        log.record(each)
    if description is not None:
        (directory / "run.json").write_text(json.dumps(description))
    return directory


def append_record(directory: Path, record: Record) -> None:
    """Append a record to the log of a run."""
    other = directory / "appended"
    JsonLinesMonitor(other).record(record)
    with (directory / "log.jsonl").open("a") as log:
        log.write(other.read_text())
    other.unlink()
