"""A task as a value: the input of a learner, and its report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from crossbow.solver import Pace
from crossbow.types import Array, NonFiniteLossError

Purpose = Literal["local", "synchronise", "train", "check"]
"""Purpose of a task: a training step that does not end the tick, one that does, a training step without barriers, or a
batch of the check set."""

TaskKey = tuple[Purpose, int]
"""Purpose and parity, which select one of a learner's task lists."""

PARITIES = (0, 1)
"""The values of `Task.parity`."""


class Task(NamedTuple):
    """A batch for a learner; or, for a synchroniser, the end of a tick."""

    purpose: Purpose
    number: int
    """Number of the task over all learners, counted from the start of training or, in a test, from its first batch."""
    tick: int
    slot: int
    """Slot of the loader's ring that contains the batch."""
    examples: int
    """Number of real examples in the batch; the rest is padding."""
    pace: Pace
    coefficients: Array
    """Coefficients of the learner's updates at this pace. They are not overwritten: a new pace gets a new array."""

    @property
    def parity(self) -> int:
        """Index of the current one of z's two buffers."""
        return self.tick % 2

    @property
    def key(self) -> TaskKey:
        return self.purpose, self.tick % 2


class Completed(NamedTuple):
    """Result of a task."""

    task: int
    loss: float
    accuracy: float | None
    examples: int
    learner: int
    seconds: float | None = None
    """Duration of its calls in seconds, if measured. Without a barrier, it includes no waits for other learners."""
    merges: int = 0
    """Across ranks without a barrier, if the schedule counts merges: the merges that the rank has counted since its
    last result."""
    metrics: tuple[float, ...] = ()
    """The values of a test task's other metrics (`dataflow.graph.other_measures`), in their order."""

    @classmethod
    def of_json(cls, values: Sequence[Any]) -> Completed:
        """The result whose fields are these JSON values."""
        result = cls(*values)
        return result._replace(metrics=tuple(result.metrics))


class Failed(NamedTuple):
    """A task that ended with an exception, or was aborted because another one failed (`error` is None)."""

    task: int
    learner: int
    operator: str
    error: BaseException | None


Report = Callable[[Completed | Failed], None]
"""Function that receives the results of a learner's tasks, on the learner's thread."""

Finished = Callable[[int, Pace], None]
"""Called on a learner's thread after a training task and before its report, with the learner's number."""


def check_loss(task: Task, loss: float) -> None:
    """Raise NonFiniteLossError if a task's loss is not finite."""
    if math.isfinite(loss):
        return
    if task.purpose == "check":
        raise NonFiniteLossError(f"the test's loss became {loss} in batch {task.number} of the check set")
    raise NonFiniteLossError(
        f"the loss became {loss} in task {task.number} (learning rate {task.pace.rate:g}). Lower the learning rate, or "
        "look for bad values in the data"
    )
