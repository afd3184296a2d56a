"""Profile of a task: the times of the calls of its task lists.

The compiled loop that makes the calls reads the clock, so no Python code runs between them, and concurrent learners are
measured realistically. A reading takes about 30 ns; a task of LeNet has about fifty calls.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.kernels.stamps import Stamps
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.engine import Engine
from crossbow.timeline.recorder import TaskEvent
from crossbow.types import Array

AVERAGING = ("average", "statistics", "wait", "signal")
"""Operators of a task list, or their first words, that exist only for averaging. The correction of the replica is part
of the optimiser's passes, and cannot be separated from the step."""
OUTSIDE = "outside native calls"


@dataclass(frozen=True)
class Row:
    """A call of the task list, in order."""

    operator: str
    call: str
    seconds: float
    """Mean time per task."""


class TimedCalls:
    """A task list that adds up the time of each call."""

    def __init__(self, calls: TaskList) -> None:
        self._stamps = Stamps(len(calls.calls))
        self._calls = TaskList(calls.calls, calls.names, self._stamps)
        self.names = calls.names
        self.totals: Array = np.zeros(len(calls.names), np.int64)
        """Nanoseconds of each call."""

    def run(self) -> None:
        self._calls.run()
        self.totals += np.diff(self._stamps.times())

    def reset(self) -> None:
        self.totals[:] = 0


def profile(engine: Engine, train: Callable[[], object]) -> list[Row]:
    """The mean times of the calls of the synchronising tasks, while `train` runs."""
    recorder = engine.parts.setting.recorder
    recorder.start()
    train()
    return table(recorder.stop().tasks)


def table(tasks: Sequence[TaskEvent]) -> list[Row]:
    """Mean times over learners and tasks. The first row is the time of a learner between the calls of two tasks: Python
    code and idle time."""
    of_track: dict[str, list[TaskEvent]] = defaultdict(list)
    for task in sorted(tasks, key=lambda task: task.begin):
        if task.purpose == "synchronise":
            of_track[task.track].append(task)
    chosen = [task for each in of_track.values() for task in each]
    outside = [
        following.times[0] - task.times[-1]
        for each in of_track.values()
        for task, following in itertools.pairwise(each)
    ]
    means = np.mean([np.diff(task.times) for task in chosen], axis=0) / 1e9
    return [
        Row(OUTSIDE, "", float(np.mean(outside)) / 1e9),
        *(Row(*call, float(seconds)) for call, seconds in zip(chosen[0].calls, means, strict=True)),
    ]


def share(rows: Sequence[Row], operators: Sequence[str]) -> float:
    """The fraction of time spent in the operators with these names, or whose names begin with them."""
    return sum(row.seconds for row in rows if row.operator.startswith(tuple(operators))) / sum(
        row.seconds for row in rows
    )
