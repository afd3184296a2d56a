"""Timelines: what they say, their files, and that they are those of the runs that they were recorded in."""

from __future__ import annotations

import gzip
import itertools
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, Checkpoints, DataError, ExecutionContext, ModelConf, Profile, SystemConf, Timeline
from crossbow.synch import EASGD, AsynchronousSGD, Gossip, Rule
from crossbow.timeline.recorder import SCHEDULER, SYNCHRONISER
from crossbow.timeline.spans import DATA, Kind, Sample, Span, Spans
from crossbow.timeline.timeline import FORMAT, Loss
from crossbow.types import TrainingUnit
from tests.support import Probe, blobs, perceptron


def timeline(*spans: tuple[str, Kind, str, int, int, dict[str, object]], **about: object) -> Timeline:
    return Timeline(Spans([Span(*span) for span in spans], [], [Sample("slots", 3, 2.5)]), about)


TASK = {"purpose": "local", "tick": 0, "examples": 50}


def two_learners() -> Timeline:
    """Learner 0 computes 60 of 100 ns, learner 1 70 of 100."""
    return timeline(
        ("learner 0", "task", "task 0", 0, 100, TASK),
        ("learner 0", "python", "begin", 0, 5, {}),
        ("learner 0", "operator", "conv1", 5, 55, {}),
        ("learner 0", "optimiser", "optimiser", 55, 65, {}),
        ("learner 0", "averaging", "average", 65, 70, {}),
        ("learner 0", "wait", "wait merged", 70, 100, {"for": "learner 1"}),
        ("learner 1", "task", "task 1", 0, 90, TASK),
        ("learner 1", "operator", "conv1", 0, 70, {}),
        ("learner 1", "wait", "wait merged", 70, 90, {}),
        ("learner 1", "no task", "no task", 90, 100, {"for": "data"}),
        (SCHEDULER, "event", "wait for results", 0, 90, {}),
        kernels={"conv1": "direct", "relu1": "(in that of 'conv1')"},
        operations={"conv1": 600},
    )


def test_shares_add_up() -> None:
    shares = two_learners().shares("learner 0")
    assert shares == {
        "operator": 0.5, "optimiser": 0.1, "averaging": 0.05, "wait": 0.3, "no task": 0.0, "python": 0.05,
    }  # fmt: skip
    assert sum(two_learners().shares("learner 1").values()) == pytest.approx(1)


def test_losses_say_what_is_waited_for() -> None:
    texts = [str(loss) for loss in two_learners().losses()]
    assert texts == [
        "learner 0 waits 30 % of its time for learner 1",
        "learner 1 waits 20 % of its time for others",
        "learner 1 waits 10 % of its time for data",
        "learner 0 spends 5 % of its time in Python code",
        "learner 0 spends 5 % of its time averaging",
    ]


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (SCHEDULER, "the scheduler"),
        (SYNCHRONISER, "the synchroniser"),
        (f"{SYNCHRONISER} 0", "synchroniser 0"),
        (DATA, "data"),
    ],
)
def test_causes_have_articles(cause: str, text: str) -> None:
    assert str(Loss("learner 0", "wait", cause, 0.25)) == f"learner 0 waits 25 % of its time for {text}"


def test_operators() -> None:
    rows = {each.name: each for each in two_learners().operators()}
    conv = rows["conv1"]
    assert (conv.calls, conv.milliseconds, conv.kernels) == (1, pytest.approx(60e-6), "direct")
    assert conv.share == pytest.approx(120 / 185)
    assert conv.gigaflops == pytest.approx(600 * 2 / 120)
    assert rows["relu1"].calls == 0
    assert rows["relu1"].kernels == "(in that of 'conv1')"
    assert rows["optimiser"].gigaflops is None


def test_tests_are_no_training_tasks() -> None:
    made = timeline(
        ("learner 0", "task", "task 0", 0, 10, TASK),
        ("learner 0", "operator", "conv1", 0, 10, {}),
        ("learner 0", "task", "test batch 0", 10, 40, {**TASK, "purpose": "check"}),
        ("learner 0", "operator", "conv1", 10, 40, {}),
    )
    assert made.tasks == 1
    assert made.operators()[0].milliseconds == pytest.approx(10e-6)


def test_the_description() -> None:
    text = two_learners().describe()
    assert text.startswith("2 tasks in 1e-07 s, 1,000,000,000 images/s\n")
    assert "largest loss: learner 0 waits 30 % of its time for learner 1" in text
    lines = [line.split() for line in text.splitlines() if line]
    assert ["learner", "0", "50.0", "%", "10.0", "%", "5.0", "%", "30.0", "%", "0.0", "%", "5.0", "%"] in lines
    assert ["conv1", "1", "0.000", "64.9", "%", "10", "direct"] in lines
    table = text.splitlines()[2:5]
    assert len({line.index("%") for line in table[1:]}) == 1, "numbers end in the same column"
    assert "optimiser  " not in two_learners().describe(operators=1).split("largest loss")[1]


def test_small_losses_are_none() -> None:
    made = timeline(("learner 0", "task", "task 0", 0, 1000, TASK), ("learner 0", "operator", "conv1", 0, 1000, {}))
    assert "largest loss: none above 1 %" in made.describe()
    assert timeline().describe() == "no training task was recorded"


# Files


def test_a_file_has_the_same_contents(tmp_path: Path) -> None:
    made = two_learners()
    made.save(tmp_path / "trace.json.gz")
    read = Timeline.load(tmp_path / "trace.json.gz")
    assert list(read.spans) == list(made.spans)
    assert list(read.samples) == list(made.samples)
    assert read.describe() == made.describe()


@pytest.mark.parametrize(
    "content",
    [b"", b"text", gzip.compress(b"{}"), gzip.compress(b"[1]"), gzip.compress(b'{"otherData": 3}')[:-9], b"\x1f\x8b"],
    ids=["empty", "text", "an object", "a list", "cut off", "only a beginning"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match="expected a timeline"):
        Timeline.load(tmp_path / "file")


TRACK = {"ph": "M", "tid": 1, "name": "thread_name", "args": {"name": "learner 0"}}
SPAN = {"ph": "X", "tid": 1, "cat": "task", "name": "task 0", "ts": 0, "dur": 1}
DETAILS = {"purpose": "train", "examples": 4}


@pytest.mark.parametrize(
    "changed",
    [
        {"traceEvents": None},
        {"traceEvents": 5},
        {"traceEvents": [{"ph": "X"}]},
        {"traceEvents": [TRACK, SPAN]},
        {"traceEvents": [TRACK, {**SPAN, "args": {**DETAILS, "examples": "many"}}]},
        {"traceEvents": [TRACK, {**SPAN, "cat": "another", "args": DETAILS}]},
        {"traceEvents": [TRACK, {**SPAN, "ts": "0", "args": DETAILS}]},
        {"traceEvents": [{**TRACK, "args": {"name": "learner x"}}, {**SPAN, "args": DETAILS}]},
        {"traceEvents": [TRACK, {"ph": "f", "tid": 1, "name": "merge", "id": 1, "ts": 1}]},
        {"otherData": {"format": FORMAT, "kernels": 3}},
    ],
)
def test_damaged_timelines_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    whole = {"otherData": {"format": FORMAT}, "traceEvents": [TRACK, {**SPAN, "args": DETAILS}]}
    (tmp_path / "file").write_bytes(gzip.compress(json.dumps(whole).encode()))
    assert Timeline.load(tmp_path / "file").tasks == 1
    (tmp_path / "file").write_bytes(gzip.compress(json.dumps({**whole, **changed}).encode()))
    with pytest.raises(DataError, match="expected the events of a timeline"):
        Timeline.load(tmp_path / "file")


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(gzip.compress(b"[" * 200_000))
    with pytest.raises(DataError, match="expected a timeline"):
        Timeline.load(tmp_path / "file")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing: expected a timeline.*No such file"):
        Timeline.load(tmp_path / "missing")
    with pytest.raises(DataError, match="expected the name of a file to write"):
        two_learners().save(tmp_path)


# Runs


def trained(
    path: Path, rule: Rule, *, devices: str = "cpu", learners: int = 2, profile: bool = True, checkpoints: bool = False
) -> tuple[ExecutionContext, dict[str, np.ndarray]]:
    """A context that was trained for 40 tasks and closed, and its variables."""
    with ExecutionContext(
        [perceptron(), None],
        data=blobs(80),
        model=ModelConf(batch_size=4, rule=rule),
        system=SystemConf(devices=devices, learners_per_device=learners, threads_per_learner=1, kernels="reference"),
        checkpoints=Checkpoints(path, interval="10tasks") if checkpoints else None,
        profile=Profile(path / "trace.json.gz", tasks=24, warm_up=8) if profile else None,
    ) as running:
        running.train_and_test(40, TrainingUnit.TASKS)
        return running, running.variables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "devices"),
    [
        (SMA(), "cpu"),
        (SMA(tau=2), "cpu:0/2,cpu:1/2"),
        (SSGD(), "cpu"),
        (EASGD(), "cpu"),
        (AsynchronousSGD(), "cpu"),
        (Gossip(), "cpu"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_recorded_run(tmp_path: Path, rule: Rule, devices: str) -> None:
    running, _ = trained(tmp_path, rule, devices=devices, learners=1 if "/" in devices else 2, checkpoints=True)
    made = running.timeline
    assert made is not None
    assert made.tasks >= 24
    assert made.learners == ["learner 0", "learner 1"]
    # each learner's parts follow one another without gaps, and add up to its time
    for learner in made.learners:
        parts = sorted((span for span in made.spans if span.track == learner and span.kind != "task"), key=begin)
        tasks = [span for span in made.spans if span.track == learner and span.kind == "task"]
        assert sum(part.duration for part in parts) == tasks[-1].end - tasks[0].begin
        assert all(part.end == following.begin for part, following in itertools.pairwise(parts))
    check_nesting(made)
    # operators are those of the program
    described = set(running.describe().split()) | {"optimiser", "merge", "batch"}
    names = {span.name for span in made.spans if span.kind == "operator"}
    assert names
    assert names <= described
    tracks = {span.track for span in made.spans}
    assert {SCHEDULER, "crossbow-loader"} <= tracks
    assert (SYNCHRONISER in tracks) == ("/" in devices)
    check_trace(tmp_path / "trace.json.gz", made)
    assert Timeline.load(tmp_path / "trace.json.gz").describe() == made.describe()


def begin(span: Span) -> tuple[int, int]:
    return span.begin, span.end


def check_nesting(made: Timeline) -> None:
    """Two spans of a track are apart, or one contains the other."""
    open_until: dict[str, list[int]] = defaultdict(list)
    for span in made.spans:
        until = open_until[span.track]
        while until and until[-1] <= span.begin:
            until.pop()
        assert not until or span.end <= until[-1], span
        until.append(span.end)


def check_trace(path: Path, made: Timeline) -> None:
    """The file is what the Trace Event Format asks for."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    phases = defaultdict(list)
    for event in events:
        phases[event["ph"]].append(event)
    assert set(phases) == {"M", "X", "s", "f", "C"} if made.arrows else {"M", "X", "C"}
    assert len(phases["X"]) == len(made.spans)
    assert [event["id"] for event in phases["s"]] == [event["id"] for event in phases["f"]]
    assert all(
        start["ts"] <= end["ts"] and start["tid"] != end["tid"]
        for start, end in zip(phases["s"], phases["f"], strict=True)
    )
    named = {event["tid"] for event in phases["M"] if event["name"] == "thread_name"}
    assert {event["tid"] for event in phases["X"]} <= named
    assert {event["name"] for event in phases["C"]} == {"crossbow-loader", "crossbow-check-loader", "images/s"} - (
        set() if any(span.name == "test" for span in made.spans) else {"crossbow-check-loader"}
    )


@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=["SMA", "SSGD"])
def test_weights_do_not_depend_on_the_recording(tmp_path: Path, rule: Rule) -> None:
    with_one, without = (trained(tmp_path / str(each), rule, profile=each)[1] for each in (True, False))
    assert all((with_one[name] == without[name]).all() for name in without)


def test_a_file_that_cannot_be_written_does_not_end_training(tmp_path: Path) -> None:
    (tmp_path / "trace.json.gz").mkdir()
    with pytest.warns(RuntimeWarning, match="the timeline was not written: .*expected the name of a file"):
        running, _ = trained(tmp_path, SMA())
    assert running.timeline is not None
    assert running.history.records[-1].tasks == 40


@pytest.mark.slow
def test_a_slow_learner_is_the_largest_loss(tmp_path: Path) -> None:
    """Learner 1 takes 20 ms more in every task: learner 0 waits for it."""

    slow = Probe(action=lambda where, learner, call: time.sleep(0.02 * learner))
    with ExecutionContext(
        [perceptron(slow), None],
        data=blobs(80, check=0),
        model=ModelConf(batch_size=4),
        system=SystemConf(learners_per_device=2, threads_per_learner=1, kernels="reference"),
        profile=Profile(tmp_path / "trace.json.gz", tasks=24),
    ) as running:
        running.train(40, TrainingUnit.TASKS)
        made = running.timeline
    assert made is not None
    largest = made.losses()[0]
    assert (largest.learner, largest.kind, largest.cause) == ("learner 0", "wait", "learner 1")
    assert largest.share > 0.2
