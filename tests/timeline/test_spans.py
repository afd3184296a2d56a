"""Spans of a recording: what learners did, and what they waited for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from crossbow.timeline.recorder import (
    MERGE,
    SCHEDULER,
    SYNCHRONISER,
    WAIT_FOR_BATCH,
    Count,
    Recording,
    TaskEvent,
    ThreadEvent,
)
from crossbow.timeline.spans import Arrow, Sample, Span, kind_of, learners, order_of_tracks, spans_of

ONE_DEVICE = {"learner 0": 0, "learner 1": 0}


def task(
    learner: int | str,
    begin: int,
    calls: Sequence[tuple[str, int]],
    *,
    number: int = 0,
    tick: int = 0,
    exchange: int = 0,
    end: int | None = None,
    purpose: str = "synchronise",
) -> TaskEvent:
    """calls: operators, and the times at which they end. The first one begins 1 after the task."""
    times = [begin + 1, *(time for _, time in calls)]
    names = [(operator, f"kernel of {operator}") for operator, _ in calls]
    track = learner if isinstance(learner, str) else f"learner {learner}"
    end = times[-1] + 2 if end is None else end
    return TaskEvent(track, purpose, number, tick, 16, begin, np.array(times), names, exchange, end)


def found(spans: Sequence[Span], track: str, kind: str) -> list[tuple[str, int, int, object]]:
    return [
        (span.name, span.begin, span.end, span.details.get("for"))
        for span in spans
        if span.track == track and span.kind == kind
    ]


def test_the_parts_of_a_task() -> None:
    recording = Recording(100, [task(0, 110, [("conv1", 120), ("average", 125), ("optimiser", 131)])])
    spans = spans_of(recording, {"learner 0": 0}).spans
    assert [(span.kind, span.name, span.begin, span.end) for span in spans] == [
        ("task", "task 0", 10, 33),
        ("python", "begin", 10, 11),
        ("operator", "conv1", 11, 20),
        ("averaging", "average", 20, 25),
        ("optimiser", "optimiser", 25, 31),
        ("python", "end", 31, 33),
    ]
    assert spans[2].details == {"call": "kernel of conv1"}
    assert spans[0].details == {"purpose": "synchronise", "tick": 0, "examples": 16}


def test_a_wait_is_for_the_last_learner_that_signals() -> None:
    """Learner 0 waits from 10 to 30; learner 1 signals at 29, learner 2 at 20."""
    recording = Recording(
        0,
        [
            task(0, 0, [("signal ready", 5), ("conv", 10), ("wait ready", 30)]),
            task(1, 0, [("conv", 28), ("signal ready", 29), ("wait ready", 31)]),
            task(2, 0, [("conv", 19), ("signal ready", 20), ("wait ready", 30)]),
        ],
    )
    contents = spans_of(recording, {f"learner {number}": 0 for number in range(3)})
    assert found(contents.spans, "learner 0", "wait") == [("wait ready", 10, 30, "learner 1")]
    assert found(contents.spans, "learner 1", "wait") == [("wait ready", 29, 31, None)]  # all were there
    assert found(contents.spans, "learner 2", "wait") == [("wait ready", 20, 30, "learner 1")]
    assert Arrow("ready", "learner 1", 29, "learner 0", 30) in contents.arrows
    assert len(contents.arrows) == 6


def test_signals_of_other_ticks_and_devices_do_not_count() -> None:
    tasks = [
        task(0, 0, [("signal ready", 5), ("wait ready", 30)]),
        task(1, 0, [("conv", 19), ("signal ready", 20)]),
        task(1, 50, [("signal ready", 60)], tick=1),
    ]
    other = spans_of(Recording(0, tasks), {"learner 0": 0, "learner 1": 1})
    assert found(other.spans, "learner 0", "wait") == [("wait ready", 5, 30, None)]
    assert other.arrows == []
    same = spans_of(Recording(0, tasks), ONE_DEVICE)
    assert found(same.spans, "learner 0", "wait") == [("wait ready", 5, 30, "learner 1")]


def test_learners_of_several_devices_wait_for_the_synchroniser() -> None:
    recording = Recording(
        0,
        [
            task(0, 0, [("signal contributed", 5), ("wait merged", 50)]),
            task(1, 0, [("signal contributed", 20), ("wait merged", 50)]),
            task(SYNCHRONISER, 0, [("wait contributed", 21), ("all-reduce", 40), ("signal merged", 49)]),
        ],
    )
    spans = spans_of(recording, {"learner 0": 0, "learner 1": 1}).spans
    assert found(spans, "learner 0", "wait") == [("wait merged", 5, 50, SYNCHRONISER)]
    assert found(spans, SYNCHRONISER, "wait") == [("wait contributed", 1, 21, "learner 1")]
    assert learners(spans) == ["learner 0", "learner 1"]


@pytest.mark.parametrize(
    ("waited", "cause"), [((10, 29), "data"), ((10, 15), SCHEDULER), (None, SCHEDULER), ((-5, 8), SCHEDULER)]
)
def test_a_learner_without_a_task(waited: tuple[int, int] | None, cause: str) -> None:
    """It has none from 10 to 30; the scheduler waits for a batch meanwhile, or not."""
    recording = Recording(0, [task(0, 0, [("conv", 8)]), task(0, 30, [("conv", 40)], number=2, tick=1)])
    if waited is not None:
        recording.events.append(ThreadEvent(SCHEDULER, WAIT_FOR_BATCH, *waited, {}))
    spans = spans_of(recording, {"learner 0": 0}).spans
    assert found(spans, "learner 0", "no task") == [("no task", 10, 30, cause)]


def test_an_exchange() -> None:
    """Learner 1 arrives at 20, while learner 0 has the lock until 30; its merge lets both continue."""
    recording = Recording(
        0,
        [
            task(0, 0, [("conv", 10)], exchange=12, end=35, purpose="train"),
            task(1, 0, [("conv", 18)], exchange=20, end=45, purpose="train"),
            task(0, 48, [("conv", 60)], purpose="train"),
        ],
        [
            ThreadEvent("learner 0", MERGE, 12, 30, {"going": []}),
            ThreadEvent("learner 1", MERGE, 31, 44, {"going": [0, 1]}),
        ],
    )
    contents = spans_of(recording, ONE_DEVICE)
    assert found(contents.spans, "learner 0", "averaging") == [(MERGE, 12, 30, None)]
    assert found(contents.spans, "learner 1", "averaging") == [(MERGE, 31, 44, None)]
    assert found(contents.spans, "learner 1", "wait") == [("wait for the exchange", 20, 31, "learner 0")]
    assert found(contents.spans, "learner 0", "no task") == [("no task", 35, 48, "learner 1")]
    assert contents.arrows == [Arrow(MERGE, "learner 1", 44, "learner 0", 48)]


def test_other_threads_and_counters() -> None:
    tasks = [task(0, 10 * n, [("conv", 10 * n + 6)], number=n, tick=n) for n in range(4)]
    recording = Recording(
        0, tasks, [ThreadEvent("loader", "fill a batch", 3, 9, {"task": 1})], [Count("slots", 4, 2.0)]
    )
    contents = spans_of(recording, {"learner 0": 0})
    assert found(contents.spans, "loader", "event") == [("fill a batch", 3, 9, None)]
    assert contents.samples[0] == Sample("slots", 4, 2.0)
    assert [sample.value for sample in contents.samples[1:]] == pytest.approx([16 / 10e-9] * 3)
    assert order_of_tracks(contents.spans) == ["learner 0", "loader"]


def test_tracks_are_ordered_by_what_they_are() -> None:
    names = ["zebra", SCHEDULER, "learner 10", "loader", SYNCHRONISER, "learner 2"]
    spans = [Span(name, "task" if name.startswith("learner") else "event", "", 0, 1, {}) for name in names]
    assert order_of_tracks(spans) == ["learner 2", "learner 10", SYNCHRONISER, SCHEDULER, "loader", "zebra"]


def test_kinds_of_operators() -> None:
    names = ["conv1", "conv1.gradient", "optimiser", "signal ready", "average", "clip", "gradient norm", "statistics"]
    assert [kind_of(name) for name in names] == ["operator"] * 2 + ["optimiser"] + ["averaging"] * 5


def test_an_event_that_began_before_the_recording_is_cut() -> None:
    recording = Recording(100, events=[ThreadEvent("loader", "fill a batch", 90, 120, {})])
    (span,) = spans_of(recording, {}).spans
    assert (span.begin, span.end) == (0, 20)
