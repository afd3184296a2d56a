"""When a timeline is recorded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import ConfigurationError, ExecutionContext, ModelConf, Monitor, Profile, SystemConf
from crossbow.runtime import profiling
from crossbow.runtime.monitor import Progress
from crossbow.runtime.profiling import Profiler
from crossbow.timeline.recorder import Recorder, Recording
from crossbow.types import TrainingUnit
from tests.configurations import declared
from tests.support import blobs, perceptron
from tests.timeline.test_recorder import task


class Recorded:
    """A profiler, with tasks that are recorded while it wants them."""

    def __init__(self, **settings: Any) -> None:
        self.recorder = Recorder()
        self.profiler = Profiler(Profile("trace", **settings), self.recorder, self._write)
        self.written: list[int] = []

    def _write(self, profile: Profile, recording: Recording) -> None:
        self.written.append(len(recording.tasks))

    def run(self, tasks: int, *, first: int = 0, learners: int = 2) -> list[int]:
        """Train by ticks. Returns the tasks that were recorded."""
        engine: Any = SimpleNamespace(tasks=first, clock=SimpleNamespace(learners=learners))
        recorded: list[int] = []
        self.profiler.begin(engine, first + tasks)
        for number in range(first, first + tasks, learners):
            self.profiler.advance(number)
            for each in range(number, number + learners):
                if self.recorder.on:
                    self.recorder.task(task())
                    recorded.append(each)
            if self.profiler.is_complete():
                self.profiler.finish()
        self.profiler.finish()
        return recorded


def test_a_recording_begins_after_the_warm_up() -> None:
    made = Recorded(tasks=8, warm_up=4)
    assert made.run(40) == list(range(4, 12))
    assert made.written == [8]


@pytest.mark.parametrize("before", [0, 400])
@pytest.mark.parametrize(("tasks", "first"), [(1000, 20), (180, 18), (100, 10), (6, 0)])
def test_the_default_warm_up_is_short_in_a_short_training(tasks: int, first: int, before: int) -> None:
    assert Recorded(tasks=4).run(tasks, first=before)[0] == before + first


def test_a_training_that_ends_early_is_recorded_up_to_its_end() -> None:
    made = Recorded(tasks=100, warm_up=4)
    assert made.run(10) == list(range(4, 10))
    assert made.written == [6]


def test_there_is_one_recording() -> None:
    made = Recorded(tasks=4, warm_up=0)
    assert len(made.run(20)) == 4
    assert not made.profiler.is_complete()  # training would pause at every tick
    assert made.run(20, first=20) == []
    assert made.written == [4]


def test_a_training_that_is_too_short_leaves_the_recording_to_the_next() -> None:
    made = Recorded(tasks=4, warm_up=30)
    assert made.run(20) == []
    assert made.run(60, first=20) == [50, 51, 52, 53]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": 0}, r"tasks must be an integer ≥ 1.*tasks=0"),
        ({"warm_up": -1}, r"warm_up must be an integer ≥ 0.*warm_up=-1"),
        ({"path": 3}, r"path must be a path.*path=3"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Profile(**{"path": "trace", **settings})


def test_a_context_takes_a_profile_only() -> None:
    with pytest.raises(ConfigurationError, match="profile must be a Profile"):
        ExecutionContext([perceptron(), None], data=blobs(), profile="trace.json.gz")  # type: ignore[arg-type]


def test_a_system_without_a_clock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "clock_gettime", lambda: 0)
    with pytest.raises(ConfigurationError, match="profile needs a system with clock_gettime"):
        Recorded()


class Interrupting(Monitor):
    """Fails once, when training has done some tasks."""

    interval = 0.0

    def __init__(self) -> None:
        self.failed = False

    def progress(self, progress: Progress) -> None:
        if progress.tasks >= 20 and not self.failed:
            self.failed = True
            raise OSError("no")


def test_names_and_defaults_of_options() -> None:
    expected = "Profile.tasks=200 --tasks (200)\n    an integer ≥ 1\n"
    assert declared(Profile) == expected + "Profile.warm_up=None --warm-up (None)\n    an integer ≥ 0 or None\n"
    assert Profile("trace.json").tasks == 200  # the path needs no name


def test_nothing_is_written_if_training_fails(tmp_path: Path) -> None:
    with ExecutionContext(
        [perceptron(), None],
        data=blobs(80),
        model=ModelConf(batch_size=4),
        system=SystemConf(learners_per_device=2, threads_per_learner=1, kernels="reference"),
        monitors=[Interrupting()],
        profile=Profile(tmp_path / "trace.json.gz", tasks=1000, warm_up=0),
    ) as running:
        with pytest.raises(Exception, match="no"):
            running.train(4, TrainingUnit.EPOCHS)
        assert running.timeline is None
        assert not (tmp_path / "trace.json.gz").exists()
        running.train(40, TrainingUnit.TASKS)
        assert running.timeline is not None
        assert running.timeline.tasks == 40  # the tasks of the call that failed are not in it
