"""A learner on a thread: it runs tasks in order, reports each, and stops after a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import State
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.cpu.coefficients import HostNumbers
from crossbow.runtime.cpu.learner import CpuLearner
from crossbow.runtime.cpu.stream import CpuStream
from crossbow.runtime.cpu.work import BoundTask
from crossbow.runtime.device import available_cores
from crossbow.runtime.flags import Flags
from crossbow.runtime.memory import new_state
from crossbow.runtime.task import Completed, Failed, Task
from crossbow.solver import Pace
from crossbow.timeline.recorder import Recorder
from crossbow.types import Aborted, NonFiniteLossError
from tests.support import SECONDS, raising

PACE = Pace(0.1, 0.0)


class Bench:
    """A learner whose task is `work`, on a thread of its own."""

    def __init__(self, *, accuracy: bool = True, finished: Any = None) -> None:
        self.reports: list[Completed | Failed] = []
        self.released: list[int] = []
        self.seen: list[tuple[int, ...]] = []
        self.work: Callable[[], None] = lambda: None
        self.flags, self.state, self.numbers = Flags(2, 1), new_state(), HostNumbers(2)
        self.loss, self.accuracy = np.array([0.5]), np.array([0.25])
        self.recorder = Recorder()
        self.stream = CpuStream("learner-7", available_cores(), 1, lambda threads: None)
        calls = TaskList([self.note, lambda: self.work()], ["note", "operator"])
        bound = BoundTask(calls, self.loss, self.accuracy if accuracy else None, self.released.append)
        tasks: Any = {("local", 1): bound, ("train", 1): bound, ("check", 1): BoundTask(calls)}
        self.learner = CpuLearner(
            7,
            self.stream,
            tasks,
            self.numbers,
            self.state,
            self.flags,
            self.reports.append,
            finished,
            recorder=self.recorder,
        )

    def note(self) -> None:
        names = (State.TASK, State.SLOT, State.EXAMPLES, State.TICK)
        self.seen.append((*(int(self.state[name]) for name in names), *self.numbers.array.tolist()))

    def run(self, *tasks: Task) -> list[Completed | Failed]:
        for task in tasks:
            self.learner.submit(task)
        assert self.learner.wait(SECONDS)
        return self.reports


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.learner.stop(SECONDS)


def task(number: int = 3, purpose: Any = "local", coefficients: Any = (1.0, 2.0)) -> Task:
    return Task(purpose, number, 5, 2, 4, PACE, np.array(coefficients))


def test_a_result_has_what_the_task_list_wrote(bench: Bench) -> None:
    (result,) = bench.run(task())
    assert isinstance(result, Completed)
    assert result[:5] == (3, 0.5, 0.25, 4, 7)
    assert result.seconds is not None
    assert result.seconds >= 0
    assert bench.released == [2]


def test_kernels_see_the_task_and_its_coefficients(bench: Bench) -> None:
    bench.run(task(3), task(4, coefficients=(8.0, 9.0)))
    assert bench.seen == [(3, 2, 4, 5, 1.0, 2.0), (4, 2, 4, 5, 8.0, 9.0)]


def test_what_a_network_does_not_have_is_not_reported(bench: Bench) -> None:
    (result,) = bench.run(task(purpose="check"))
    assert isinstance(result, Completed)
    assert np.isnan(result.loss)
    assert result.accuracy is None
    assert bench.released == []


def test_tasks_run_in_order(bench: Bench) -> None:
    assert [result.task for result in bench.run(*(task(number) for number in range(20)))] == list(range(20))


def test_submitting_does_not_wait(bench: Bench) -> None:
    gate = threading.Event()

    def work() -> None:
        assert gate.wait(SECONDS)

    bench.work = work
    bench.learner.submit(task())
    assert not bench.learner.wait(0.01)
    assert bench.reports == []
    gate.set()
    assert bench.learner.wait(SECONDS)
    assert len(bench.reports) == 1


def test_after_a_failure_no_other_task_begins(bench: Bench) -> None:
    error = KeyError("what")
    bench.work = raising(error)
    first, second = bench.run(task(3), task(4))
    assert first == Failed(3, 7, "operator", error)
    assert second == Failed(4, 7, "wait", None)
    assert bench.flags.aborted
    assert len(bench.seen) == 1


def test_a_task_that_is_aborted_is_no_cause(bench: Bench) -> None:
    """Another learner has failed, which this one was waiting for."""
    bench.work = raising(Aborted())
    assert bench.run(task()) == [Failed(3, 7, "wait", None)]
    assert not bench.flags.aborted


def test_a_failure_of_another_learner_stops_this_one(bench: Bench) -> None:
    bench.flags.raise_abort()
    assert bench.run(task()) == [Failed(3, 7, "wait", None)]
    assert bench.seen == []


def test_a_loss_that_is_not_finite_is_a_failure(bench: Bench) -> None:
    bench.loss[0] = np.nan
    (result,) = bench.run(task())
    assert isinstance(result, Failed)
    assert isinstance(result.error, NonFiniteLossError)
    assert (bench.flags.aborted, bench.released) == (True, [2])


def test_without_a_barrier_an_exchange_follows_each_training_task() -> None:
    exchanged: list[tuple[int, Pace]] = []
    bench = Bench(finished=lambda learner, pace: exchanged.append((learner, pace)))
    bench.run(task(0, "train"), task(1, "check"), task(2, "train"))
    assert exchanged == [(7, PACE), (7, PACE)]
    bench.learner.stop(SECONDS)


def test_an_exchange_that_fails_is_named_and_one_after_a_failure_is_left_out() -> None:
    error, exchanged = ZeroDivisionError(), list[int]()

    def finished(learner: int, pace: Pace) -> None:
        exchanged.append(learner)
        raise error

    bench = Bench(finished=finished)
    assert bench.run(task(0, "train")) == [Failed(0, 7, "exchange", error)]
    bench.flags.abort[0] = 0
    bench.work = bench.flags.raise_abort  # another learner fails in the meantime
    assert bench.run(task(1, "train"))[1:] == [Failed(1, 7, "wait", None)]
    assert exchanged == [7]
    bench.learner.stop(SECONDS)
