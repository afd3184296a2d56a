"""Results of a part of `benchmarks.gpu_check`, row by row.

Each row is saved as soon as it is known: a part that runs out of time, loses the GPU or is killed loses none.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crossbow.kernels.cuda.api import api


class OutOfTimeError(Exception):
    """A part's time is over. The message says how far it got."""


class Clock:
    """Time limit of a part."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def check(self, done: int, total: int) -> None:
        if not self.left:
            raise OutOfTimeError(f"the time was over after {done} of {total}")


@dataclass(frozen=True)
class Row:
    """One comparison."""

    name: str
    operator: str
    """Operator or network, by which rows are summarised."""
    error: float | None
    """Error of the comparison; None if an exception was raised, or if numbers were compared bit by bit."""
    tolerance: float = 0.0
    fault: str = ""
    """Description of the fault; empty if the row has passed."""


Keep = Callable[[Mapping[str, Any]], None]
"""Function that receives each row and fact as soon as it is known: {"row": …} or {"fact": name, "value": …}."""


@dataclass
class Rows:
    """The rows of a part so far."""

    keep: Keep = field(default=lambda entry: None)
    what: str = ""
    """Kind of the rows, for example "48 rows, runs"."""
    headline: str = ""
    """The part's result in words, if it is not that of the rows."""
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.keep({"row": asdict(row)})

    def note(self, name: str, value: Any) -> None:
        """Record a fact in addition to the rows."""
        self.facts[name] = value
        self.keep({"fact": name, "value": value})

    def title(self, what: str, headline: str = "") -> None:
        """Set the kind of the rows, and the part's result in words."""
        self.what, self.headline = what, headline
        self.keep({"what": what, "headline": headline})

    def measure(self, name: str, measured: Callable[[], float], tolerance: float, operator: str) -> None:
        """Add a row. An exception of `measured` is the row's fault; it is re-raised only if the GPU is unusable."""
        try:
            error = float(measured())
        except Exception as failure:
            self.add(Row(name, operator, None, tolerance, f"{type(failure).__name__}: {failure}"))
            try:
                api().runtime.deviceSynchronize()
            except Exception as lost:
                raise RuntimeError(f"the GPU cannot be used after {name}: {type(lost).__name__}: {lost}") from failure
            return
        fault = "" if error <= tolerance else f"error {error:.3g}, tolerance {tolerance:g}"
        self.add(Row(name, operator, error, tolerance, fault))

    @property
    def faults(self) -> list[str]:
        return [f"{row.name}: {row.fault}" for row in self.rows if row.fault]

    @property
    def number(self) -> str:
        """All results in a line."""
        if self.headline or not self.rows:
            return self.headline or self.what or "–"
        text = f"{self.what}: {len(self.rows)}"
        measured = [row for row in self.rows if row.error is not None and row.tolerance]
        if not measured:
            return text
        nearest = max(measured, key=lambda row: _share(row))
        share = _share(nearest)
        return f"{text}; nearest to its tolerance: {nearest.operator}, {nearest.error:.2g} ({share:.1%})"

    @property
    def details(self) -> dict[str, Any]:
        """Content of the JSON: every row's error, the largest error of every operator, and the facts."""
        largest: dict[str, float] = {}
        for row in self.rows:
            if row.error is not None:
                largest[row.operator] = max(row.error, largest.get(row.operator, 0.0))
        rows = {row.name: row.fault or _text(row.error) for row in self.rows}
        return {**self.facts, "largest errors": {key: _text(value) for key, value in largest.items()}, "rows": rows}


def _share(row: Row) -> float:
    """Error as a fraction of its tolerance."""
    assert row.error is not None
    share = row.error / row.tolerance
    return share if math.isfinite(share) else math.inf


def _text(error: float | None) -> float | str:
    """The error as a JSON value."""
    if error is None:
        return "passed"
    return error if math.isfinite(error) else str(error)


class Journal:
    """A file with a line of JSON for every entry of every part, written at once, so that it survives the process."""

    def __init__(self, path: Path, part: str) -> None:
        self._path, self._part = path, part

    def __call__(self, entry: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": self._part, **entry}, default=str) + "\n")

    @staticmethod
    def read(path: Path, part: str, start: int = 0) -> Rows:
        """The rows of a part, from the lines after the given byte."""
        found = Rows()
        for entry in _entries(path, start):
            if entry.pop("part", None) != part:
                continue
            if "row" in entry:
                found.add(Row(**entry["row"]))
            elif "fact" in entry:
                found.note(entry["fact"], entry["value"])
            elif "convolutions" in entry:
                found.facts.setdefault("convolutions", []).extend(entry["convolutions"])
            elif "what" in entry:
                found.title(**entry)
        return found


def _entries(path: Path, start: int) -> Sequence[dict[str, Any]]:
    """The complete lines; the last one may be truncated."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
