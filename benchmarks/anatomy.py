"""Profile of a task: a clock is read between the calls of the task lists that an engine runs.

The clock is a native call itself, so no Python code runs between the calls, and concurrent learners are measured
realistically. A reading takes about 30 ns; a task of LeNet has about fifty calls.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import call_address, int64_at, native_pass
from crossbow.kernels.interface import Call
from crossbow.kernels.native import NativeCall
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.engine import Engine
from crossbow.types import Array

CLOCK_MONOTONIC = 1
AVERAGING = ("average", "statistics", "wait", "signal")
"""Operators of a task list, or their first words, that exist only for averaging. The correction of the replica is part
of the optimiser's passes, and cannot be separated from the step."""
OUTSIDE = "outside native calls"


@native_pass(Arguments(clock_gettime=Address, timespec=Address, last=Address, total=Address))
def lap(block: Any) -> int:
    """Read the clock, and add the time since the last reading to the total."""
    call_address(block.clock_gettime, CLOCK_MONOTONIC, block.timespec, 0, 0)  # type: ignore[call-arg, unused-ignore]
    clock, last, total = int64_at(block.timespec), int64_at(block.last), int64_at(block.total)
    now = clock[0] * 1_000_000_000 + clock[1]
    total[0] += now - last[0]
    last[0] = now
    return 0


@dataclass(frozen=True)
class Row:
    """A call of the task list, in order."""

    operator: str
    call: str
    seconds: float
    """Mean time per task."""


class Laps:
    """The clock of one learner. Its time before the first call is Python's and idle time since the previous task."""

    def __init__(self) -> None:
        self._clock: Array = np.zeros(2, np.int64)
        self._last: Array = np.zeros(1, np.int64)
        self._function = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
        self.totals: Array = np.zeros(0, np.int64)
        self.names: list[tuple[str, str]] = []

    def between(self, calls: TaskList) -> TaskList:
        """The task list with a reading before the first call and after every call."""
        if not self.names:
            self.names = [(OUTSIDE, "")] + [
                (operator, call_name(call)) for operator, call in zip(calls.names, calls.calls, strict=True)
            ]
            self.totals = np.zeros(len(self.names), np.int64)
        made: list[Call] = [self._lap(0)]
        operators = [OUTSIDE]
        for index, (operator, call) in enumerate(zip(calls.names, calls.calls, strict=True)):
            made += [call, self._lap(index + 1)]
            operators += [operator, operator]
        return TaskList(made, operators)

    def _lap(self, index: int) -> NativeCall:
        if self._function is None:
            raise OSError("clock_gettime: expected to find it in the C library")
        total = self.totals[index : index + 1]
        return lap.call("lap", clock_gettime=self._function, timespec=self._clock, last=self._last, total=total)

    def reset(self) -> None:
        self.totals[:] = 0


def install(engine: Engine) -> list[Laps]:
    """Install a clock in every synchronising task of an idle engine. Returns the clocks by learner."""
    clocks = []
    for member in engine.members:
        laps, tasks = Laps(), dict(member.learner.tasks)
        for key, bound in tasks.items():
            if key[0] == "synchronise":
                tasks[key] = dataclasses.replace(bound, calls=laps.between(bound.calls))
        member.learner.tasks = tasks
        clocks.append(laps)
    return clocks


def table(clocks: Sequence[Laps], tasks: int) -> list[Row]:
    """Means over learners and tasks; `tasks` is the total number of tasks of all learners."""
    sums = np.sum([laps.totals for laps in clocks], axis=0) / tasks / 1e9
    return [
        Row(operator, call, float(seconds)) for (operator, call), seconds in zip(clocks[0].names, sums, strict=True)
    ]


def call_name(call: Call) -> str:
    return call.name if isinstance(call, NativeCall) else "Python"


def share(rows: Sequence[Row], operators: Sequence[str]) -> float:
    """The fraction of time spent in the operators with these names, or whose names begin with them."""
    return sum(row.seconds for row in rows if row.operator.startswith(tuple(operators))) / sum(
        row.seconds for row in rows
    )
