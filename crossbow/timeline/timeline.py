"""A timeline: the activities of a run's learners during some tasks, as a file and as tables."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from crossbow.files import checked_path, file_error, reason, write_whole
from crossbow.timeline.recorder import SCHEDULER, SYNCHRONISER, Recording
from crossbow.timeline.spans import Arrow, Kind, Sample, Span, Spans, learners, order_of_tracks, spans_of
from crossbow.types import DataError

FORMAT = "crossbow timeline 1"
ABOUT = ("kernels", "operations")
"""The entries of a file about each operator."""
SHOWN: Mapping[Kind, str] = {
    "operator": "operators",
    "optimiser": "optimiser",
    "averaging": "averaging",
    "wait": "waiting",
    "no task": "no task",
    "python": "Python",
}
"""Kinds of spans that make up a learner's time, and their headings."""
LEAST_LOSS = 0.01
"""Smallest share of a learner's time for which a loss is described."""


@dataclass(frozen=True)
class OperatorTime:
    """An operator's time in training tasks."""

    name: str
    calls: float
    """Mean number of calls per task."""
    milliseconds: float
    """Mean time per task."""
    share: float
    """Share of the time of all calls."""
    gigaflops: float | None
    """10⁹ additions and multiplications per second, those of a direct computation; None for operators without
    products."""
    kernels: str
    """Names of its kernels; in brackets, the other kernel that includes it."""


@dataclass(frozen=True)
class Loss:
    """Time during which a learner does not compute."""

    learner: str
    kind: Kind
    cause: str
    """The cause of a wait, if it is known; otherwise empty."""
    share: float
    """Share of the learner's time."""

    def __str__(self) -> str:
        percent = f"{100 * self.share:.0f} %"
        if self.kind == "averaging":
            return f"{self.learner} spends {percent} of its time averaging"
        if self.kind == "python":
            return f"{self.learner} spends {percent} of its time in Python code"
        cause = f"the {self.cause}" if self.cause in (SCHEDULER, SYNCHRONISER) else self.cause or "others"
        return f"{self.learner} waits {percent} of its time for {cause}"


class Timeline:
    """The activities of the learners and the other threads of a run. Get it from `ExecutionContext.timeline`, or `load`
    it."""

    def __init__(self, contents: Spans, about: Mapping[str, Any]) -> None:
        """about: "kernels", the kernels of each operator, and "operations", the additions and multiplications of each
        operator in a task."""
        self.spans: Sequence[Span] = contents.spans
        self.arrows: Sequence[Arrow] = contents.arrows
        self.samples: Sequence[Sample] = contents.samples
        self._about = about

    @classmethod
    def of(cls, recording: Recording, devices: Mapping[str, int], about: Mapping[str, Any]) -> Timeline:
        """The timeline of a recording. devices: the device of each learner's track."""
        return cls(spans_of(recording, devices), about)

    # Results

    @property
    def learners(self) -> list[str]:
        """The learners' tracks."""
        return learners(self.spans)

    @property
    def tasks(self) -> int:
        """Number of training tasks."""
        return len(self._training_tasks())

    def shares(self, learner: str) -> dict[Kind, float]:
        """The shares of a learner's time by kind of activity, which add up to 1."""
        seconds: dict[Kind, int] = dict.fromkeys(SHOWN, 0)
        for span in self._parts(learner):
            seconds[span.kind] += span.duration
        whole = max(1, sum(seconds.values()))
        return {kind: each / whole for kind, each in seconds.items()}

    def losses(self) -> list[Loss]:
        """Averages, waits and times without a task, by learner and cause, the largest first."""
        found = []
        for learner in self.learners:
            spent: dict[tuple[Kind, str], int] = defaultdict(int)
            whole = 0
            for span in self._parts(learner):
                whole += span.duration
                if span.kind not in ("operator", "optimiser"):
                    kind: Kind = "wait" if span.kind == "no task" else span.kind
                    spent[kind, str(span.details.get("for", ""))] += span.duration
            found += [Loss(learner, kind, cause, each / max(1, whole)) for (kind, cause), each in spent.items()]
        return sorted(found, key=lambda loss: -loss.share)

    def operators(self) -> list[OperatorTime]:
        """The operators' times in training tasks, in the order of their first calls. Operators whose work is part of
        another one's kernel have no time."""
        training = {(task.track, task.begin): task.end for task in self._training_tasks()}
        nanoseconds: dict[str, int] = defaultdict(int)
        calls: dict[str, int] = defaultdict(int)
        until: dict[str, int] = {}
        for span in self.spans:
            if span.kind == "task":
                until[span.track] = training.get((span.track, span.begin), 0)
            elif span.kind not in ("python", "no task", "event") and span.end <= until.get(span.track, 0):
                nanoseconds[span.name] += span.duration
                calls[span.name] += 1
        count, whole = max(1, len(training)), max(1, sum(nanoseconds.values()))
        kernels, operations = self._about.get("kernels", {}), self._about.get("operations", {})
        return [
            OperatorTime(
                name,
                calls[name] / count,
                nanoseconds[name] / count / 1e6,
                nanoseconds[name] / whole,
                operations[name] * count / nanoseconds[name] if name in operations and nanoseconds[name] else None,
                kernels.get(name, ""),
            )
            for name in [*nanoseconds, *(name for name in kernels if name not in nanoseconds)]
        ]

    def _training_tasks(self) -> list[Span]:
        names = set(self.learners)
        tasks = (span for span in self.spans if span.kind == "task" and span.track in names)
        return [task for task in tasks if task.details["purpose"] != "check"]

    def _parts(self, learner: str) -> Iterator[Span]:
        """The spans that make up a learner's time."""
        return (span for span in self.spans if span.track == learner and span.kind in SHOWN)

    # Text

    def describe(self, operators: int | None = None) -> str:
        """A text with the shares of the learners' time, the largest loss, and the operators' times. operators: number
        of operators to list, the slowest; None: all in order."""
        tasks = self._training_tasks()
        if not tasks:
            return "no training task was recorded"
        seconds = (max(task.end for task in tasks) - min(task.begin for task in tasks)) * 1e-9
        images = sum(int(str(task.details["examples"])) for task in tasks)
        lines = [f"{len(tasks):,} tasks in {seconds:.3g} s, {images / seconds:,.0f} images/s", ""]
        rows = [("", *SHOWN.values())]
        for learner in self.learners:
            shares = self.shares(learner)
            rows.append((learner, *(f"{100 * shares[kind]:.1f} %" for kind in SHOWN)))
        lines += [*_table(rows), "", f"largest loss: {self.largest_loss()}", ""]
        rows = [("operator", "calls", "ms", "share", "GFLOP/s", "kernels")]
        times = self.operators()
        if operators is not None:
            times = sorted(times, key=lambda each: -each.milliseconds)[:operators]
        for each in times:
            rate = "" if each.gigaflops is None else f"{each.gigaflops:,.0f}"
            calls, share = f"{each.calls:.4g}", f"{100 * each.share:.1f} %"
            timed = (calls, f"{each.milliseconds:.3f}", share, rate) if each.calls else ("",) * 4
            rows.append((each.name, *timed, each.kernels))
        return "\n".join([*lines, *_table(rows)])

    def largest_loss(self) -> str:
        """A sentence about the largest loss."""
        losses = self.losses()
        if not losses or losses[0].share < LEAST_LOSS:
            return f"none above {100 * LEAST_LOSS:.0f} %"
        return str(losses[0])

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a compressed file in the Trace Event Format, for ui.perfetto.dev and chrome://tracing. Raises
        DataError."""
        target = checked_path("save", path)
        document = {"traceEvents": list(self._events()), "displayTimeUnit": "ms", "otherData": self._other_data()}
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        try:
            write_whole(target, gzip.compress(text.encode(), mtime=0))
        except OSError as error:
            raise file_error(error, target, "a file to write") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Timeline:
        """Read a file that `save` wrote. Raises DataError."""
        source = checked_path("load", path)
        try:
            document = json.loads(gzip.decompress(source.read_bytes()))
        except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
            raise file_error(_plain(error), source, "a timeline, as --profile writes it") from error
        other = document.get("otherData") if isinstance(document, dict) else None
        if not isinstance(other, dict) or other.get("format") != FORMAT:
            raise DataError(f"{source}: expected a timeline in the format {FORMAT!r}. Received: another file")
        try:
            return cls(_contents(document["traceEvents"]), {name: dict(other.get(name, {})) for name in ABOUT})
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{source}: expected the events of a timeline, as --profile writes them. "
                f"Received: {type(error).__name__}: {error}"
            ) from error

    def _other_data(self) -> dict[str, Any]:
        return {**self._about, "format": FORMAT}

    def _events(self) -> Iterator[dict[str, Any]]:
        """The events of the Trace Event Format. Times are in microseconds."""
        threads = {track: number for number, track in enumerate(order_of_tracks(self.spans), 1)}
        yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "crossbow"}}
        for track, thread in threads.items():
            about = {"ph": "M", "pid": 1, "tid": thread}
            yield {**about, "name": "thread_name", "args": {"name": track}}
            yield {**about, "name": "thread_sort_index", "args": {"sort_index": thread}}
        for track, kind, name, begin, end, details in self.spans:
            event = {"ph": "X", "pid": 1, "tid": threads[track], "cat": kind, "name": name}
            yield {**event, "ts": begin / 1e3, "dur": (end - begin) / 1e3, **({"args": details} if details else {})}
        for number, arrow in enumerate(self.arrows):
            if arrow.source in threads and arrow.target in threads:
                event = {"pid": 1, "cat": "arrow", "name": arrow.name, "id": number}
                yield {**event, "ph": "s", "tid": threads[arrow.source], "ts": arrow.begin / 1e3}
                yield {**event, "ph": "f", "bp": "e", "tid": threads[arrow.target], "ts": arrow.end / 1e3}
        for sample in self.samples:
            yield {"ph": "C", "pid": 1, "name": sample.name, "ts": sample.time / 1e3, "args": {"value": sample.value}}


def _contents(events: Sequence[Mapping[str, Any]]) -> Spans:
    """The contents of a file's events. Raises an error of Python if they are not those of a timeline."""
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    contents, begun = Spans([], [], []), {}
    for event in events:
        phase = event["ph"]
        if phase == "X":
            begin, duration = _nanoseconds(event["ts"]), _nanoseconds(event["dur"])
            track, details = tracks[event["tid"]], dict(event.get("args", {}))
            if event["cat"] not in get_args(Kind):
                raise ValueError(f"unknown category {event['cat']!r}")
            if event["cat"] == "task":
                details["purpose"], int(details["examples"])  # tables read them
            contents.spans.append(Span(track, event["cat"], event["name"], begin, begin + duration, details))
        elif phase == "s":
            begun[event["id"]] = tracks[event["tid"]], _nanoseconds(event["ts"])
        elif phase == "f":
            target = tracks[event["tid"]], _nanoseconds(event["ts"])
            contents.arrows.append(Arrow(event["name"], *begun[event["id"]], *target))
        elif phase == "C":
            contents.samples.append(Sample(event["name"], _nanoseconds(event["ts"]), event["args"]["value"]))
    learners(contents.spans)  # their tracks must have numbers
    return contents


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1e3)


def _plain(error: Exception) -> OSError | ValueError:
    """The error of damaged compressed data, as one of those that files raise."""
    return error if isinstance(error, OSError | ValueError) else ValueError(reason(error))


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; numbers are aligned at their ends."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            text.ljust(width) if (column in (0, last) and len(widths) < 7) or column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
