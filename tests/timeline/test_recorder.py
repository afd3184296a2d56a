"""What is recorded, and when."""

from __future__ import annotations

from functools import partial

import numpy as np

from crossbow.clock import now
from crossbow.timeline.recorder import SYNCHRONISER, Recorder, TaskEvent, learner_track


def task(track: str = "learner 0", purpose: str = "local") -> TaskEvent:
    return TaskEvent(track, purpose, 0, 0, 4, 0, np.zeros(1, np.int64), [], 0, 1)


def test_a_recorder_is_off_at_first() -> None:
    recorder = Recorder()
    assert not recorder.on
    recorder.start()
    assert recorder.on
    recorder.stop()
    assert not recorder.on


def test_only_training_tasks_of_learners_count() -> None:
    recorder = Recorder()
    recorder.start()
    for event in (task(), task(purpose="check"), task(SYNCHRONISER), task(learner_track(1), "train")):
        recorder.task(event)
    assert recorder.training_tasks == 2
    assert len(recorder.stop().tasks) == 4


def test_an_event_ends_when_it_is_recorded() -> None:
    recorder, before = Recorder(), now()
    recorder.start()
    recorder.event("a thread", "work", before, task=3)
    recorder.count("slots", 2.0)
    recording = recorder.stop()
    (event,), (count,) = recording.events, recording.counts
    assert (event.track, event.name, event.begin, event.details) == ("a thread", "work", before, {"task": 3})
    assert before <= event.end <= count.time <= now()
    assert count.value == 2.0


def test_tasks_whose_times_come_later_are_in_their_order() -> None:
    recorder = Recorder()
    recorder.start()
    for number in range(3):
        recorder.task_later(partial(task, learner_track(number)))
    assert [event.track for event in recorder.stop().tasks] == ["learner 0", "learner 1", "learner 2"]


def test_each_recording_is_new() -> None:
    recorder = Recorder()
    recorder.start()
    recorder.task(task())
    first = recorder.stop()
    recorder.start()
    assert recorder.training_tasks == 0
    assert len(recorder.stop().tasks) == 0
    assert len(first.tasks) == 1


def test_a_recording_can_be_discarded() -> None:
    recorder = Recorder()
    recorder.start()
    recorder.task(task())
    recorder.discard()
    assert not recorder.on
    assert recorder.training_tasks == 0
    assert len(recorder.stop().tasks) == 0
