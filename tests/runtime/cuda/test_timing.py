"""Times of a GPU's calls, and timelines of runs on GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, ExecutionContext, Profile, TrainingUnit
from crossbow.clock import now
from crossbow.kernels.cuda.launch import on
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.runtime.cuda.timing import Marks, StreamClock
from crossbow.runtime.cuda.work import Work
from crossbow.synch import EASGD, BarrierRule, ModelAveraging, SynchronousEASGD
from crossbow.timeline.recorder import SCHEDULER
from tests.combinations import one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.runtime.cuda import test_training as engine
from tests.support import engine_of
from tests.timeline.test_timeline import check_nesting


@pytest.fixture
def stream() -> Iterator[CudaStream]:
    with fake_cuda():
        made = CudaStream("learner", 0)
        yield made
        made.close()


def test_times_are_those_of_the_host(stream: CudaStream) -> None:
    before, clock = now(), StreamClock(stream)
    with on(stream.place):
        marks = Marks(stream)
        marks.mark("conv1", "kernel")
        marks.mark("wait merged")
        stream.call(lambda: None)
        times = marks.times(clock).tolist()
    assert marks.calls == [("conv1", "kernel"), ("wait merged", "event")]
    inside = [before, *times, now()]
    assert len(times) == 3
    assert inside == sorted(inside)


def trained(path: Path, devices: str, rule: Any, *, profile: bool) -> tuple[ExecutionContext, dict[str, Any], int]:
    """The context, its variables, and the number of learner's works that are graphs at the end."""
    profiles = Profile(path / "trace.json.gz", tasks=12, warm_up=12) if profile else None
    with (
        engine.fake_cuda(devices.count("cuda"), 3),
        engine.context(devices, rule=rule, profile=profiles) as running,
    ):
        running.train(48, TrainingUnit.TASKS)
        works = [
            task.compute for learner in engine_of(running).coordination.learners for task in learner.tasks.values()
        ]
        return running, running.variables, sum(isinstance(work, Work) and work.is_graph for work in works)


BATCH, READY, MERGED, STEP = "wait for the batch", "signal ready", "wait merged", "optimiser"


@pytest.mark.slow
@one_in(6)
@pytest.mark.parametrize(
    ("rule", "devices", "parts_of_task"),
    [
        (SMA(), "cuda:0", [READY, BATCH, MERGED, STEP]),
        (SMA(tau=2), "cuda:0,cuda:1", [READY, BATCH, MERGED, STEP]),
        (SSGD(), "cuda:0", [BATCH, READY, MERGED]),
        (ModelAveraging(), "cuda:0", [BATCH, STEP, READY, MERGED, "reply"]),
        (SynchronousEASGD(alpha=0.2), "cuda:0,cuda:1", [READY, BATCH, MERGED, STEP]),
        (EASGD(), "cuda:0", [BATCH, STEP]),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_recorded_run(tmp_path: Path, rule: Any, devices: str, parts_of_task: list[str]) -> None:
    running, variables, graphs = trained(tmp_path, devices, rule, profile=True)
    made = running.timeline
    assert made is not None
    assert made.tasks >= 12
    assert made.learners == [f"learner {number}" for number in range(2 * devices.count("cuda"))]
    check_nesting(made)
    for learner in made.learners:
        parts = [span for span in made.spans if span.track == learner and span.kind != "task"]
        tasks = [span for span in made.spans if span.track == learner and span.kind == "task"]
        assert sum(part.duration for part in parts) == tasks[-1].end - tasks[0].begin
        within = [[part.name for part in parts if task.begin <= part.begin < task.end] for task in tasks]
        assert parts_of_task in [[name for name in names if name in (*parts_of_task, READY)] for names in within]
    described = set(running.describe().split()) | {"results"}
    names = {span.name for span in made.spans if span.kind == "operator"}
    assert names
    assert names <= described
    synchronisers = {span.track for span in made.spans if span.track.startswith("synchroniser")}
    barrier = isinstance(rule, BarrierRule)
    assert synchronisers == ({f"synchroniser {n}" for n in range(devices.count("cuda"))} if barrier else set())
    assert SCHEDULER in {span.track for span in made.spans}
    if barrier:
        ends = {span.name for span in made.spans if span.track.startswith("synchroniser")}
        assert ends >= {"wait ready", "average", "signal merged"}
        assert ("all-reduce" in ends) == (devices.count("cuda") > 1)
        waits = {(span.track, span.details.get("for")) for span in made.spans if span.name == "wait merged"}
        assert waits <= {(f"learner {n}", who) for n in range(4) for who in (f"synchroniser {n // 2}", None)}
        # the weights are those of a run without, and the works that were timed are graphs again
        _, expected, graphs_without = trained(tmp_path, devices, rule, profile=False)
        assert all(np.array_equal(variables[name], value) for name, value in expected.items())
        assert graphs == graphs_without > 0
