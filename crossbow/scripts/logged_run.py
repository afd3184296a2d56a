"""A run as read from its output directory, while it trains or afterwards."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossbow import History, Record
from crossbow.files import reason
from crossbow.scripts.run_directory import VERSION, check_version
from crossbow.types import DataError

LOG, DESCRIPTION = "log.jsonl", "run.json"


@dataclass(frozen=True)
class LoggedRun:
    """The log and the description of a run."""

    directory: Path
    settings: Mapping[str, Any]
    """Settings of the run by option, and its seed, data, versions, machine and commit."""
    records: Sequence[Record]
    decisions: Sequence[str]
    """Decisions of the training, such as the number of learners that the auto-tuner chose, as text."""
    description: Mapping[str, Any]
    """The content of `run.json`; empty if there is none."""

    @property
    def name(self) -> str:
        return self.directory.resolve().name

    @property
    def best(self) -> Record | None:
        """The record with the best test accuracy."""
        return History(list(self.records)).best

    @property
    def batch_size(self) -> int | None:
        """Number of images in a batch; None if unknown."""
        size = self.settings.get("batch_size")
        return size if isinstance(size, int) else None

    def reaching(self, accuracy: float) -> Record | None:
        """The first record with at least this test accuracy; None if there is none."""
        for record in self.records:
            if record.test is not None and record.test.accuracy is not None and record.test.accuracy >= accuracy:
                return record
        return None


def read_run(directory: Path) -> LoggedRun:
    """Read the files of a run. Raises DataError if the directory is not one of a run, or if a file is damaged.

    The last line of the log may be incomplete, because a run may be writing it, or was killed.
    """
    log = directory / LOG
    if not directory.is_dir():
        received = "a file" if directory.exists() else "nothing of that name"
        raise DataError(f"{directory}: expected the output directory of a run. Received: {received}")
    if not log.is_file():
        raise DataError(f"{directory}: expected the output directory of a run, with {LOG}. Received: one without it")
    description = _description(directory / DESCRIPTION)
    header: dict[str, Any] = {}
    records, decisions = [], []
    for number, line in _lines(log):
        if "run" in line:
            header = line["run"] if isinstance(line["run"], dict) else {}
        elif "decision" in line:
            decisions.append(str(line["decision"]))
        elif "epoch" in line:
            records.append(_record(line, log, number))
    return LoggedRun(directory, _settings(header, description), records, decisions, description)


def _description(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected a description of a run (JSON). Received: {reason(error)}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a description of a run, a JSON object. Received: {type(content).__name__}")
    check_version(path, content.get("version", VERSION))
    return content


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a log with the numbers of their lines."""
    try:
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected a log of records. Received: {reason(error)}") from error
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: expected a JSON object. Received: {text[:60]!r}") from error
        if not isinstance(line, dict):
            raise DataError(f"{path}, line {number}: expected a JSON object. Received: {text[:60]!r}")
        yield number, line


def _record(line: Mapping[str, Any], path: Path, number: int) -> Record:
    try:
        record = Record.of_numbers(line)
        if math.isfinite(record.epoch) and math.isfinite(record.time + record.tasks):
            return record
    except (KeyError, TypeError):
        pass
    raise DataError(f"{path}, line {number}: expected a record of training. Received: {json.dumps(line)[:60]!r}")


def _settings(header: Mapping[str, Any], description: Mapping[str, Any]) -> dict[str, Any]:
    """All settings by name: those of the log's header, and those of `run.json`, which include defaults. Nested settings
    have names such as "data name"."""
    found = {**_configured(description.get("configuration")), **header}
    settings = description.get("settings")
    found.update(settings if isinstance(settings, dict) else {})
    for name in ("seed", "data", "versions", "machine", "commit"):
        value = description.get(name)
        if isinstance(value, dict):
            found.update({f"{name} {key}": each for key, each in value.items()})
        elif value is not None:
            found[name] = value
    return found


def _configured(configuration: Any) -> dict[str, Any]:
    """The settings of model, rule, solver and system by name."""
    found: dict[str, Any] = {}
    for section in configuration.values() if isinstance(configuration, dict) else ():
        for name, value in section.items() if isinstance(section, dict) else ():
            found.update(value if name == "rule" and isinstance(value, dict) else {name: value})
    return found
