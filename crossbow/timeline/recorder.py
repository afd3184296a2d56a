"""Recording of the events of a run, from which a timeline is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from crossbow.clock import now
from crossbow.types import Array

SYNCHRONISER, SCHEDULER, CHECKPOINTS = "synchroniser", "scheduler", "checkpoints"
"""Names of tracks: the part that merges between devices, the thread that trains, and the thread that writes
checkpoints."""
WAIT_FOR_BATCH, WAIT_FOR_RESULTS = "wait for a batch", "wait for results"
COPY_FOR_CHECKPOINT = "copy for a checkpoint"
"""Names of the scheduler's events."""
MERGE = "merge"
"""Name of a learner's event: its exchange, from the time at which no other learner exchanges."""


LEARNER = "learner "
"""Prefix of the names of learners' tracks."""


def learner_track(number: int) -> str:
    """Name of a learner's track."""
    return f"{LEARNER}{number}"


def synchroniser_track(device: int) -> str:
    """Name of the track of a GPU's synchroniser."""
    return f"{SYNCHRONISER} {device}"


class ThreadEvent(NamedTuple):
    """An event with a duration on a track. Times are nanoseconds of `crossbow.clock.now`."""

    track: str
    name: str
    begin: int
    end: int
    details: dict[str, object]


class TaskEvent(NamedTuple):
    """A task of a learner, or of the synchroniser."""

    track: str
    purpose: str
    task: int
    tick: int
    examples: int
    begin: int
    """The time at which the learner's thread took the task."""
    times: Array
    """The time at which the first call began, and the times at which the calls ended."""
    calls: Sequence[tuple[str, str]]
    """Operator and name of each call."""
    exchange: int
    """The time at which the exchange after the calls began; 0 without an exchange."""
    end: int


class Count(NamedTuple):
    """The value of a counter from this time on."""

    name: str
    time: int
    value: float


@dataclass
class Recording:
    """The recorded tasks, events and counters."""

    began: int = 0
    tasks: list[TaskEvent] = field(default_factory=list)
    events: list[ThreadEvent] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    pending: list[Callable[[], TaskEvent]] = field(default_factory=list)
    """Tasks whose times are read at the end, when they are done."""


class Recorder:
    """Collects events of all threads of a run. It is off at first, and then costs its users only a check of `on`."""

    def __init__(self) -> None:
        self.on = False
        self._recording = Recording()
        self._training: list[TaskEvent] = []

    def start(self) -> None:
        """Begin a recording."""
        self._recording, self._training = Recording(now()), []
        self.on = True

    def stop(self) -> Recording:
        """End the recording. Events that end later are part of it if it has not been used by then. No task may be
        running if `task_later` was called."""
        self.on = False
        recording = self._recording
        while recording.pending:
            recording.tasks.append(recording.pending.pop(0)())
        return recording

    def discard(self) -> None:
        """End the recording, if there is one, and forget it."""
        self.on = False
        self._recording, self._training = Recording(), []

    @property
    def training_tasks(self) -> int:
        """Number of training tasks recorded."""
        return len(self._training)

    def task(self, event: TaskEvent) -> None:
        """Record a task, from any thread."""
        self._recording.tasks.append(event)
        if event.track.startswith(LEARNER) and event.purpose != "check":
            self._training.append(event)  # a count would be wrong if two threads increased it at once

    def task_later(self, event: Callable[[], TaskEvent]) -> None:
        """Record a task whose times are not known yet. event: function that is called when the recording ends."""
        self._recording.pending.append(event)

    def event(self, track: str, name: str, begin: int, **details: object) -> None:
        """Record an event that ends now, from any thread."""
        self._recording.events.append(ThreadEvent(track, name, begin, now(), details))

    def count(self, name: str, value: float) -> None:
        """Record a counter's value, from any thread."""
        self._recording.counts.append(Count(name, now(), value))
