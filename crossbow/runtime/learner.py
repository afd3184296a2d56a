"""A learner: a replica and a stream, and the task lists that are bound to them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from crossbow.compile import BoundStep
from crossbow.kernels.interface import Aborted, State
from crossbow.kernels.native import TaskList
from crossbow.runtime.stream import CpuStream
from crossbow.solver import Pace
from crossbow.types import Array, NonFiniteLossError


@dataclass(frozen=True, slots=True)
class Completed:
    """A task's result."""

    task: int
    loss: float
    accuracy: float | None
    examples: int
    learner: int
    seconds: float | None = None
    """How long its calls took, where that is measured. Without a barrier nothing in them waits for another learner."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A task that ended with an exception, or was given up because another failed (`error` is None)."""

    task: int
    learner: int
    operator: str
    error: BaseException | None


Report = Callable[[Completed | Failed], None]


@dataclass(frozen=True)
class BoundTask:
    """A task list, and where it leaves loss and accuracy (arrays of one element, None where there is none)."""

    calls: TaskList
    loss: Array | None
    accuracy: Array | None


def bind_task(steps: Sequence[BoundStep], loss: Array | None, accuracy: Array | None) -> BoundTask:
    return BoundTask(TaskList([step.call for step in steps], [step.operator for step in steps]), loss, accuracy)


TaskKey = tuple[str, int]
"""What a task is for ("synchronise", "local", "check") and the parity of its tick."""


class Numbers(Protocol):
    """The numbers that a learner's updates are made with."""

    def set(self, pace: Pace) -> None:
        """Those at this pace, from now on."""


class Learner:
    """Runs tasks on its stream, in order.

    A task that fails raises `abort`, and while that is raised no task begins: the replica has missed a step, so the
    learner must not contribute to another tick before it is started again.
    """

    def __init__(
        self,
        number: int,
        stream: CpuStream,
        tasks: Mapping[TaskKey, BoundTask],
        coefficients: Numbers,
        state: Array,
        abort: Array,
    ) -> None:
        self.number = number
        self.stream = stream
        self._tasks = tasks
        self._coefficients = coefficients
        self._state = state
        self._abort = abort

    def submit(
        self,
        key: TaskKey,
        *,
        task: int,
        tick: int,
        slot: int,
        examples: int,
        pace: Pace,
        release: Callable[[int], None],
        report: Report,
    ) -> None:
        """Run a task after those submitted before. `release` gets the slot when it has been read; `report` the result.

        Returns at once; the exception of a task is reported, not raised.
        """

        def run() -> None:
            if self._abort[0]:
                report(Failed(task, self.number, "wait", None))
                return
            operator, began = "task", time.perf_counter()
            try:
                bound = self._tasks[key]
                state = self._state
                state[State.TASK] = task
                state[State.TICK] = tick
                state[State.SLOT] = slot
                state[State.EXAMPLES] = examples
                self._coefficients.set(pace)
                try:
                    bound.calls.run()
                except BaseException:
                    operator = bound.calls.failed or operator
                    raise
                seconds = time.perf_counter() - began
                loss = float("nan") if bound.loss is None else float(bound.loss[0])
                accuracy = None if bound.accuracy is None else float(bound.accuracy[0])
                release(slot)
                if bound.loss is not None:
                    check_loss(key[0], loss, task, pace.rate)
                operator = "exchange"
                self._end(key, pace)
            except Aborted:
                report(Failed(task, self.number, "wait", None))
            except BaseException as error:
                self._abort[0] = 1
                report(Failed(task, self.number, operator, error))
            else:
                report(Completed(task, loss, accuracy, examples, self.number, seconds))

        self.stream.submit(run)

    def _end(self, key: TaskKey, pace: Pace) -> None:
        """What is done behind a task, on the learner's thread, before it is reported."""


def check_loss(purpose: str, loss: float, task: int, rate: float) -> None:
    """Raise NonFiniteLossError where a task's loss is not finite."""
    if math.isfinite(loss):
        return
    if purpose == "check":
        raise NonFiniteLossError(f"the test's loss became {loss} in batch {task} of the check set")
    raise NonFiniteLossError(
        f"the loss became {loss} in task {task} (learning rate {rate:g}). Lower the learning rate, or look for bad "
        "values in the data"
    )
