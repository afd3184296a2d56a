"""Recording of a run's timeline."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from crossbow.clock import clock_gettime
from crossbow.conf import configuration, refuse, setting
from crossbow.domains import Integer
from crossbow.files import checked_path
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.timeline.recorder import Recorder, Recording, learner_track, synchroniser_track
from crossbow.timeline.timeline import Timeline
from crossbow.types import ConfigurationError

WARM_UP = 10
"""Tasks of each learner before a recording, by default: caches are warm, and the loader is ahead."""


@configuration
class Profile:
    """A recording of the activity of learners and other threads during some tasks of training, written as a file for
    ui.perfetto.dev, chrome://tracing and `crossbow timeline`.

    It does not change the weights. During the recording, the clock is read after every call of every task.
    """

    path: str | Path = field(kw_only=False)
    """File to write, as trace.json.gz. An older file is replaced."""
    tasks: int = setting(Integer(at_least=1), default=200)
    """Number of training tasks to record, of all learners together. Tasks that are under way at the end are recorded,
    too."""
    warm_up: int | None = setting(Integer(at_least=0, optional=True), default=None)
    """Number of training tasks before the recording; None: ten of each learner, but at most a tenth of the training."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "path", checked_path("Profile", self.path))
        except TypeError:
            raise refuse(self, "path", self.path, "a path, as a str or a pathlib.Path") from None


class Profiler:
    """Records once, in the first training call that is long enough."""

    def __init__(self, settings: Profile, recorder: Recorder, write: Callable[[Profile, Recording], None]) -> None:
        """write: writes the recording. Raises ConfigurationError on systems where compiled code cannot read the
        clock."""
        if not clock_gettime():
            raise ConfigurationError("profile needs a system with clock_gettime, as Linux. Received: one without")
        self._settings, self._recorder, self._write = settings, recorder, write
        self._first = math.inf
        """Number of tasks at which the recording begins."""
        self._done = False

    def begin(self, engine: TrainingEngine, end: float) -> None:
        """Prepare for a training call, which ends after `end` tasks at the latest."""
        warm_up = self._settings.warm_up
        if warm_up is None:
            warm_up = int(min(WARM_UP * engine.clock.learners, (end - engine.tasks) / 10))
        self._first = engine.tasks + warm_up

    def advance(self, tasks: int) -> None:
        """Begin the recording if `tasks` has reached its beginning."""
        if not self._done and not self._recorder.on and tasks >= self._first:
            self._recorder.start()

    def is_complete(self) -> bool:
        """Whether enough tasks were recorded."""
        return self._recorder.on and self._recorder.training_tasks >= self._settings.tasks

    def finish(self) -> None:
        """End the recording, if there is one, and write it. No task may be running."""
        if self._recorder.on:
            self._done = True
            self._write(self._settings, self._recorder.stop())

    def cancel(self) -> None:
        """Discard the recording, if there is one, because training has failed. A later training call records again."""
        self._recorder.discard()


def timeline_of(recording: Recording, engine: TrainingEngine) -> Timeline:
    """The timeline of a recording of an engine, with the kernels and operations of its program."""
    devices = [number for number, each in enumerate(engine.summary().devices) for _ in range(each.learners)]
    program = engine.program
    kernels = {vertex.name: program.kernels_of(vertex.order) for vertex in program.graph}
    tracks = {learner_track(number): device for number, device in enumerate(devices)}
    tracks |= {synchroniser_track(device): device for device in devices}
    return Timeline.of(recording, tracks, {"kernels": kernels, "operations": program.operations()})
