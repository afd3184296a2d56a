"""Spans, arrows and counters of a timeline, from the recording of a run.

A learner's track has no gaps: its spans without inner spans are calls, waits, times without a task, and the Python code
around the calls. They add up to the time between its first and its last task.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from crossbow.timeline.recorder import (
    CHECKPOINTS,
    COPY_FOR_CHECKPOINT,
    LEARNER,
    MERGE,
    SCHEDULER,
    SYNCHRONISER,
    WAIT_FOR_BATCH,
    Recording,
    TaskEvent,
    ThreadEvent,
)

Kind = Literal["task", "operator", "optimiser", "averaging", "wait", "no task", "python", "event"]
"""The activity of a learner in a span. "task" and, on other tracks, "event" may contain other spans."""

AVERAGING = ("signal", "average", "statistics", "sum of the device", "all-reduce", "reply", "gradient norm", "clip")
"""Operators that exist only for averaging, or the first words of their names."""
OPTIMISER = "optimiser"
DATA, CHECKPOINT = "data", "a checkpoint"
"""Causes of waits that are not tracks."""
CAUSES = {WAIT_FOR_BATCH: DATA, COPY_FOR_CHECKPOINT: CHECKPOINT}
"""The cause of a learner's time without a task, by the scheduler's event at that time."""
SIGNAL, WAIT = "signal ", "wait "
"""Prefixes of the operators that set flags and wait for them; the name of the flags follows."""


class Span(NamedTuple):
    """A part of a track's time. Times are nanoseconds since the beginning of the timeline."""

    track: str
    kind: Kind
    name: str
    begin: int
    end: int
    details: Mapping[str, object]
    """Details for people who view the timeline. A wait has "for", its cause, if it is known."""

    @property
    def duration(self) -> int:
        return self.end - self.begin


class Arrow(NamedTuple):
    """An arrow from the time at which a track completed a result to the time at which another track used it."""

    name: str
    source: str
    begin: int
    target: str
    end: int


class Sample(NamedTuple):
    """The value of a counter from this time on."""

    name: str
    time: int
    value: float


class _Signal(NamedTuple):
    """The time at which a track set a flag."""

    time: int
    track: str


@dataclass(frozen=True)
class Spans:
    """The contents of a timeline."""

    spans: list[Span]
    arrows: list[Arrow]
    samples: list[Sample]


def spans_of(recording: Recording, devices: Mapping[str, int]) -> Spans:
    """The contents of a recording. devices: the device of each track that has one. A track with a device waits only for
    tracks of the same device and for tracks without a device."""
    return _Reading(recording, devices).read()


class _Reading:
    def __init__(self, recording: Recording, devices: Mapping[str, int]) -> None:
        self._recording, self._devices, self._zero = recording, devices, recording.began
        self._tasks: dict[str, list[TaskEvent]] = defaultdict(list)
        """Tasks by track, in order."""
        for task in sorted(recording.tasks, key=lambda task: task.begin):
            self._tasks[task.track].append(task)
        self._events: dict[str, list[ThreadEvent]] = defaultdict(list)
        """Other events by track, in order."""
        for event in sorted(recording.events, key=lambda event: event.begin):
            self._events[event.track].append(event)
        self._caused = [event for event in self._events[SCHEDULER] if event.name in CAUSES]
        """The scheduler's events for which learners may wait."""
        self._signals: dict[tuple[str, int], list[_Signal]] = defaultdict(list)
        """The signals, by flags and tick."""
        for task in recording.tasks:
            for (operator, _), end in zip(task.calls, task.times[1:].tolist(), strict=False):
                if operator.startswith(SIGNAL):
                    self._signals[operator.removeprefix(SIGNAL), task.tick].append(_Signal(end, task.track))
        self._merges = sorted((event for event in recording.events if event.name == MERGE), key=lambda event: event.end)
        self._arrows: list[Arrow] = []

    def read(self) -> Spans:
        spans = [span for track in self._tasks for span in self._learner(track)]
        for track, events in self._events.items():
            if track not in self._tasks:
                spans += [
                    self._span(track, "event", each.name, max(each.begin, self._zero), each.end, each.details)
                    for each in events  # an event may have begun before the recording
                ]
        samples = [Sample(count.name, self._at(count.time), count.value) for count in self._recording.counts]
        spans.sort(key=lambda span: (span.begin, -span.end))  # outer spans before inner ones
        return Spans(spans, self._arrows, [*samples, *self._rates()])

    def _at(self, time: int) -> int:
        return time - self._zero

    def _span(
        self, track: str, kind: Kind, name: str, begin: int, end: int, details: Mapping[str, object] | None = None
    ) -> Span:
        return Span(track, kind, name, self._at(begin), self._at(end), details or {})

    def _arrow(self, name: str, source: str, begin: int, target: str, end: int) -> None:
        self._arrows.append(Arrow(name, source, self._at(begin), target, self._at(end)))

    # A learner's track

    def _learner(self, track: str) -> Iterator[Span]:
        before: TaskEvent | None = None
        for task in self._tasks[track]:
            if before is not None and task.begin > before.end:
                yield self._no_task(track, before.end, task.begin)
            yield from self._task(task)
            before = task

    def _task(self, task: TaskEvent) -> Iterator[Span]:
        track, times = task.track, task.times.tolist()
        name = f"test batch {task.task}" if task.purpose == "check" else f"task {task.task}"
        details = {"purpose": task.purpose, "tick": task.tick, "examples": task.examples}
        yield self._span(track, "task", name, task.begin, task.end, details)
        yield self._span(track, "python", "begin", task.begin, times[0])
        for (operator, call), begin, end in zip(task.calls, times, times[1:], strict=False):
            if operator.startswith(WAIT):
                yield self._wait(task, operator, begin, end)
            else:
                yield self._span(track, kind_of(operator), operator, begin, end, {"call": call})
        yield from self._exchange(task, times[-1])

    def _wait(self, task: TaskEvent, operator: str, begin: int, end: int) -> Span:
        """A wait for flags, which ends when the last of them is set."""
        flags, track = operator.removeprefix(WAIT), task.track
        device = self._devices.get(track)
        signals = [
            signal
            for signal in self._signals[flags, task.tick]
            if signal.track != track and (device is None or self._devices.get(signal.track, device) == device)
        ]
        for signal in signals:
            self._arrow(flags, signal.track, signal.time, track, max(end, signal.time))
        late = max((signal for signal in signals if signal.time > begin), default=None)
        return self._span(track, "wait", operator, begin, end, {"for": late.track} if late else {})

    def _exchange(self, task: TaskEvent, begin: int) -> Iterator[Span]:
        """The spans after the calls: the exchange of a learner without a barrier, and Python code."""
        track = task.track
        if task.exchange:
            yield self._span(track, "python", "result", begin, task.exchange)
            begin = task.exchange
            events = self._events[track]
            first = bisect.bisect_left(events, begin, key=lambda event: event.begin)
            for event in events[first:]:
                if event.begin >= task.end:
                    break
                if event.begin > begin:
                    details = {} if (other := self._merging(track, begin, event.begin)) is None else {"for": other}
                    yield self._span(track, "wait", "wait for the exchange", begin, event.begin, details)
                yield self._span(track, "averaging", event.name, event.begin, event.end)
                begin = event.end
        yield self._span(track, "python", "end", begin, task.end)

    def _merging(self, track: str, begin: int, end: int) -> str | None:
        """The track of the last merge of another learner in an interval."""
        last = bisect.bisect_right(self._merges, end, key=lambda event: event.end)
        for merge in reversed(self._merges[:last]):
            if merge.end <= begin:
                return None
            if merge.track != track:
                return merge.track
        return None

    def _no_task(self, track: str, begin: int, end: int) -> Span:
        cause = self._scheduler_did(begin, end) or self._let_go(track, begin, end) or SCHEDULER
        return self._span(track, "no task", "no task", begin, end, {"for": cause})

    def _scheduler_did(self, begin: int, end: int) -> str | None:
        """The cause for which the scheduler waited during most of an interval, if it is known."""
        spent: dict[str, int] = defaultdict(int)
        events = self._caused  # one after the other, so that both their beginnings and their ends are in order
        first = bisect.bisect_right(events, begin, key=lambda event: event.end)
        for event in events[first : bisect.bisect_left(events, end, key=lambda event: event.begin)]:
            spent[CAUSES[event.name]] += min(end, event.end) - max(begin, event.begin)
        cause = max(spent, key=lambda cause: spent[cause], default=None)
        return cause if cause is not None and spent[cause] > (end - begin) / 2 else None

    def _let_go(self, track: str, begin: int, end: int) -> str | None:
        """The learner whose merge let this one continue within an interval."""
        if not track.startswith(LEARNER):
            return None
        number = int(track.removeprefix(LEARNER))
        last = bisect.bisect_right(self._merges, end, key=lambda event: event.end)
        for merge in reversed(self._merges[:last]):
            if merge.end <= begin:
                return None
            going = merge.details["going"]
            assert isinstance(going, list)
            if merge.track != track and number in going:
                self._arrow(MERGE, merge.track, merge.end, track, end)
                return merge.track
        return None

    # Counters

    def _rates(self) -> Iterator[Sample]:
        """Images/s of training, over about fifty intervals."""
        tasks = sorted((task for task in self._recording.tasks if task.purpose != "check"), key=lambda task: task.end)
        size = max(1, len(tasks) // 50)
        for first in range(size - 1, len(tasks) - size, size):
            seconds = (tasks[first + size].end - tasks[first].end) * 1e-9
            images = sum(task.examples for task in tasks[first + 1 : first + size + 1])
            if seconds > 0:
                yield Sample("images/s", self._at(tasks[first].end), images / seconds)


def kind_of(operator: str) -> Kind:
    """The kind of a call of this operator."""
    if operator == OPTIMISER:
        return "optimiser"
    return "averaging" if operator.startswith(AVERAGING) else "operator"


def learners(spans: Sequence[Span]) -> list[str]:
    """The tracks of learners, in order."""
    tracks = {span.track for span in spans if span.kind == "task" and span.track.startswith(LEARNER)}
    return sorted(tracks, key=lambda track: int(track.removeprefix(LEARNER)))


def order_of_tracks(spans: Sequence[Span]) -> list[str]:
    """All tracks: learners, the synchroniser, the scheduler, and threads."""
    found = {span.track for span in spans}
    synchronisers = sorted(track for track in found if track.startswith(SYNCHRONISER))
    named = [*learners(spans), *synchronisers, SCHEDULER, CHECKPOINTS]
    return [track for track in named if track in found] + sorted(found - set(named))
