"""A task's work as calls, and as a graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from crossbow.compile import BoundStep
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current, on
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.runtime.cuda.work import Work
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.fake_runtime import FakeRuntime
from tests.runtime.cuda.test_training import assert_same, train


def test_work_that_cannot_be_captured_runs_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train("cuda:0")

    def refuse(runtime: FakeRuntime, graph: int) -> int:
        raise RuntimeError("no luck")

    monkeypatch.setattr(FakeRuntime, "graphInstantiate", refuse)
    with pytest.warns(RuntimeWarning, match="runs without a CUDA graph: no luck"):
        received = train("cuda:0")
    assert_same(received, expected, 0)


def test_a_capture_ends_where_a_call_fails_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing more would be done in that stream. As above, the work then runs call by call."""
    expected, original = train("cuda:0"), Work._call

    def refuse(work: Work) -> None:
        original(work)
        if api().runtime.is_capturing(current().pointer):
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
    return [BoundStep(name, Capturable(done, name)) for name in ("first", "second")]


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
        assert done == ["first", "second"] * min(run, 2)
    work.close()
    assert not work.is_graph
    work.close()


@pytest.mark.parametrize("reason", ["not asked for", "a call that cannot be captured", "nothing to do"])
def test_without_a_graph_calls_are_made_every_time(reason: str, stream: CudaStream) -> None:
    done: list[str] = []
    steps = [] if reason == "nothing to do" else calls_of(done)
    if reason == "a call that cannot be captured":
        steps.append(BoundStep("third", lambda: done.append("third")))
    work = Work(steps, graph=reason != "not asked for")
    for run in (1, 2, 3):
        work.run()
        assert not work.is_graph
        assert len(done) == run * len(steps)


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
