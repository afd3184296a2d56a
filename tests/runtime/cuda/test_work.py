"""A task's work as calls, and as a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crossbow import Dataflow, TrainingUnit
from crossbow.compile import BoundStep
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current, on
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.runtime.cuda.work import DIRECT, Work
from tests.combinations import one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.fake_runtime import FakeRuntime
from tests.runtime.cuda.test_training import assert_same, context, network, train, with_residuals
from tests.support import engine_of


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize("build", [network, with_residuals])
def test_joined_kernels_change_no_bit(build: Callable[[], Dataflow], monkeypatch: pytest.MonkeyPatch) -> None:
    joined = train("cuda:0", build=build)
    monkeypatch.setattr("crossbow.runtime.cuda.work.in_series", lambda calls: [(call, 1) for call in calls])
    assert_same(train("cuda:0", build=build), joined, 0)


@pytest.mark.slow
def test_work_that_cannot_be_captured_runs_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train("cuda:0")

    def refuse(runtime: FakeRuntime, graph: int) -> int:
        raise RuntimeError("no luck")

    monkeypatch.setattr(FakeRuntime, "graphInstantiate", refuse)
    with pytest.warns(RuntimeWarning, match="runs without a CUDA graph: no luck"):
        received = train("cuda:0")
    assert_same(received, expected, 0)


@pytest.mark.slow
def test_a_capture_ends_where_a_call_fails_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing more would be done in that stream. As above, the work then runs call by call."""
    expected, original = train("cuda:0"), Work._call

    def refuse(work: Work) -> None:
        original(work)
        if api().runtime.streamIsCapturing(current().pointer):
            raise RuntimeError("no luck")

    monkeypatch.setattr(Work, "_call", refuse)
    with pytest.warns(RuntimeWarning, match="runs without a CUDA graph: no luck"):
        received = train("cuda:0")
    assert_same(received, expected, 0)


class Capturable:
    """A call that a graph may contain."""

    capturable = True

    def __init__(self, done: list[str], name: str) -> None:
        self.done, self.name, self.error = done, name, None

    def __call__(self) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(self.name)


def calls_of(done: list[str]) -> list[BoundStep]:
    return [BoundStep(name, Capturable(done, name)) for name in ("first", "second", "third")]


@pytest.fixture
def stream() -> Iterator[CudaStream]:
    with fake_cuda():
        made = CudaStream("test", 0)
        with on(made.place):
            yield made
        made.close()


def test_calls_are_made_once_then_captured_then_launched(stream: CudaStream) -> None:
    """The host makes the calls twice: once so that libraries load their code, and once for the graph."""
    done: list[str] = []
    work = Work(calls_of(done), graph=True)
    for run, graph in ((1, False), (2, True), (3, True), (4, True)):
        work.run()
        assert work.is_graph == graph
        assert done == ["first", "second", "third"] * min(run, 2)
    work.close()
    assert not work.is_graph
    work.close()


@pytest.mark.parametrize("reason", ["not asked for", "a call that cannot be captured", "two calls", "nothing to do"])
def test_without_a_graph_calls_are_made_every_time(reason: str, stream: CudaStream) -> None:
    done: list[str] = []
    steps = calls_of(done)[: {"nothing to do": 0, "two calls": DIRECT}.get(reason)]
    if reason == "a call that cannot be captured":
        steps.append(BoundStep("fourth", lambda: done.append("fourth")))
    work = Work(steps, graph=reason != "not asked for")
    for run in (1, 2, 3):
        work.run()
        assert not work.is_graph
        assert len(done) == run * len(steps)


@pytest.mark.slow
def test_graphs_that_are_never_launched_are_not_captured() -> None:
    """With τ = 1, the input buffers change with the parity, so half of the tasks are never run."""
    with fake_cuda() as cuda, context("cuda:0", learners=1) as running:
        running.train(12, TrainingUnit.TASKS)
        (learner,) = engine_of(running).coordination.learners
        trained = {key: bound.compute for key, bound in learner.tasks.items() if key[0] == "synchronise"}
        assert len(trained) == 4
        assert sum(work.is_graph for work in trained.values()) == 2
        assert len(cuda.runtime._executables) == 2
        assert not any(work.is_graph for work in learner.steps.values())  # one kernel each


def test_the_operator_that_fails_is_named_until_the_next_run(stream: CudaStream) -> None:
    done: list[str] = []
    steps = calls_of(done)
    work = Work(steps, graph=True)
    call: Any = steps[1].call
    call.error = KeyError("what")
    with pytest.raises(KeyError):
        work.run()
    assert (work.failed, done) == ("second", ["first"])
    call.error = None
    work.run()
    assert work.failed is None
    assert not work.is_graph  # no run has loaded the libraries' code before
