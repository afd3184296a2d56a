"""Times of the calls of a CPU's tasks, for timelines."""

from __future__ import annotations

from dataclasses import replace

from crossbow.kernels.native import NativeCall
from crossbow.kernels.stamps import Stamps
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.cpu.work import BoundTask
from crossbow.types import Array


class TimedTask:
    """A task with a second list of the same calls, which records their times."""

    def __init__(self, task: BoundTask) -> None:
        calls = task.calls
        self._stamps = Stamps(len(calls.calls))
        self.task = replace(task, calls=TaskList(calls.calls, calls.names, self._stamps))
        self.calls = [
            (operator, call.name if isinstance(call, NativeCall) else type(call).__name__)
            for operator, call in zip(calls.names, calls.calls, strict=True)
        ]
        """Operator and name of each call."""

    def times(self) -> Array:
        """The time at which the first call of the last run began, and the times at which the calls ended."""
        return self._stamps.times()
