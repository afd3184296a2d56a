"""A learner on a GPU: its tasks, its failures and its end."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SSGD,
    TrainingUnit,
)
from crossbow.runtime.cuda import learner as learning
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.memory import TURNS
from crossbow.runtime.cuda.work import Work
from crossbow.runtime.task import Failed, Task
from crossbow.solver import Pace
from crossbow.types import Aborted, CrossbowError, TaskError
from tests.kernels.cuda.fake import fake_cuda
from tests.runtime.cuda.test_training import context
from tests.runtime.fake_parts import TickingClock
from tests.support import SECONDS, engine_of, raising


@pytest.mark.slow
def test_a_call_that_fails_names_operator_and_task(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Work._call

    def fail(work: Work) -> None:
        if any(step.operator == "InnerProduct4" for step in work.steps):
            work.failed = "InnerProduct4"
            raise RuntimeError("no luck")
        original(work)

    with fake_cuda(), context("cuda:0", system={"graphs": False}) as running:
        running.train(6, TrainingUnit.TASKS)
        before = running.variables
        monkeypatch.setattr(Work, "_call", fail)
        with pytest.raises(
            TaskError, match=r"task \d+ failed in operator 'InnerProduct4' on learner [01]: RuntimeError: no luck"
        ):
            running.train(8, TrainingUnit.TASKS)
        assert running.engine.tasks == 6
        monkeypatch.undo()
        running.train(4, TrainingUnit.TASKS)
        assert any(not np.array_equal(before[name], value) for name, value in running.variables.items())


OTHER_TIMES = [pytest.param(seconds, marks=pytest.mark.slow) for seconds in (0.03, 0.1, 0.15, 0.2)]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.06, *OTHER_TIMES])
def test_what_is_closed_from_another_thread_gives_no_handle_back_while_it_is_used(seconds: float) -> None:
    with fake_cuda(), context("cuda:0") as running:
        closing = threading.Timer(seconds, running.close)
        closing.start()
        with pytest.raises(CrossbowError, match="closed"):
            running.train(10_000, TrainingUnit.TASKS)
        closing.join()


def test_a_failure_stops_the_learner_and_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other task begins, and the turn of the one that failed can be used again."""
    with fake_cuda(), context("cuda:0", learners=1, system={"graphs": False}) as running:
        running.train(2, TrainingUnit.TASKS)
        engine = engine_of(running)
        learner: Any = engine.coordination.learners[0]
        reports: list[Any] = []
        monkeypatch.setattr(learner, "_report", reports.append)
        free = learner._turns._free.qsize()
        with monkeypatch.context() as patch:
            patch.setattr(learner.tasks["check", 0, 0].compute, "_call", raising(KeyError("what")))
            patch.setattr(learner.tasks["check", 0, 1].compute, "_call", raising(KeyError("what")))
            pace = Pace(0.1, 0.0)
            for number in (5, 6):
                learner.submit(Task("check", number, 0, 0, 4, pace, engine.coordination.coefficients(pace)))
        assert learner.wait(SECONDS)
        first, second = reports
        assert (first.task, first.learner, repr(first.error)) == (5, 0, "KeyError('what')")
        assert second == Failed(6, 0, "wait", None)
        assert learner._turns._free.qsize() == free
        assert engine.parts.flags.aborted
        engine.parts.flags.abort[:] = 0


@pytest.mark.parametrize(
    ("error", "operator", "aborts"), [(KeyError("what"), "task", True), (Aborted(), "wait", False)], ids=repr
)
def test_a_result_that_is_none_stops_the_learner(
    error: Exception, operator: str, aborts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_cuda(), context("cuda:0", learners=1, system={"graphs": False}) as running:
        engine = engine_of(running)
        learner: Any = engine.coordination.learners[0]
        reports: list[Any] = []
        monkeypatch.setattr(learner, "_report", reports.append)
        event = SimpleNamespace(record=lambda *_: None, wait=raising(error))
        monkeypatch.setattr(learner._turns, "done", [event] * TURNS)
        pace = Pace(0.1, 0.0)
        learner.submit(Task("check", 5, 0, 0, 4, pace, engine.coordination.coefficients(pace)))
        assert learner.wait(SECONDS)
        assert reports == [Failed(5, 0, operator, error if aborts else None)]
        assert learner._turns._free.qsize() == TURNS
        assert engine.parts.flags.aborted == aborts
        engine.parts.flags.abort[:] = 0


def test_tasks_without_a_step_give_their_turns_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under S-SGD, learner 0 waits for the step of its task while learner 1 fails."""
    original = CudaLearner._compute

    def fail(learner: CudaLearner, submitted: Any) -> None:
        if learner.number == 1:
            raise RuntimeError("no luck")
        original(learner, submitted)

    with fake_cuda(), context("cuda:0", rule=SSGD()) as running:
        learners = engine_of(running).coordination.learners
        monkeypatch.setattr(CudaLearner, "_compute", fail)
        with pytest.raises(TaskError, match="on learner 1: RuntimeError: no luck"):
            running.train(4, TrainingUnit.TASKS)
        assert [learner._turns._free.qsize() for learner in learners] == [TURNS, TURNS]


@pytest.mark.slow
def test_only_a_test_has_an_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    original, found = CudaLearner._result, list[tuple[str, bool]]()

    def result(learner: CudaLearner, submitted: Any) -> Any:
        made = original(learner, submitted)
        found.append((submitted.task.purpose, made.accuracy is not None))
        return made

    monkeypatch.setattr(CudaLearner, "_result", result)
    with fake_cuda(), context("cuda:0") as running:
        running.train(4, TrainingUnit.TASKS)
        running.test()
    assert {purpose for purpose, _ in found} == {"synchronise", "check"}
    assert all(measured == (purpose == "check") for purpose, measured in found)


@pytest.mark.slow
@pytest.mark.parametrize(("busy", "timeouts"), [((), [3, 1]), (("compute",), [3]), (("copies",), [3, 1])])
def test_both_streams_together_have_some_time(
    busy: tuple[str, ...], timeouts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seconds. A look at the clock takes two."""
    given: list[float] = []

    def wait(timeout: float, name: str) -> bool:
        given.append(timeout)
        return name not in busy

    monkeypatch.setattr(learning, "time", TickingClock(2))
    with fake_cuda(), context("cuda:0", learners=1) as running:
        learner: Any = engine_of(running).coordination.learners[0]
        with monkeypatch.context() as patch:
            patch.setattr(learner.stream, "wait", partial(wait, name="compute"))
            patch.setattr(learner._streams.copies, "wait", partial(wait, name="copies"))
            assert learner.wait(5) == (not busy)
    assert given[: len(timeouts)] == timeouts
