"""Parts of an engine that note what they are asked to do, instead of doing it."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.runtime.copies import Copies
from crossbow.runtime.flow import Flow
from crossbow.runtime.reports import Reports
from crossbow.runtime.task import Completed, Task
from crossbow.solver import Pace
from crossbow.timeline.recorder import Recorder
from crossbow.types import Aborted, Array


class TickingClock:
    """A module `time` whose clock goes on at each look."""

    def __init__(self, seconds: float) -> None:
        """seconds: how long every look takes."""
        self._seconds, self._now = seconds, 100.0

    def monotonic(self) -> float:
        self._now += self._seconds
        return self._now


class FakeLearner:
    """A learner that reports its tasks at once, or when it is told to."""

    def __init__(self, number: int, reports: Reports, *, at_once: bool = True) -> None:
        self.number, self._reports, self.at_once = number, reports, at_once
        self.tasks: list[Task] = []
        self.is_done = True

    def submit(self, task: Task) -> None:
        self.tasks.append(task)
        if self.at_once:
            self._reports.put(Completed(task.number, float(task.number), None, task.examples, self.number))

    def wait(self, timeout: float) -> bool:
        return self.is_done


class FakeCoordination:
    """Learners in turn, with one merge per tick."""

    def __init__(self, reports: Reports, learners: int = 2, *, in_order: bool = True) -> None:
        self.in_order, self.counts_in_results = in_order, False
        self.learners = [FakeLearner(number, reports) for number in range(learners)]
        self.log: list[Any] = []
        self.decision: Any = None
        self.whole, self.goes_on, self.awaited = 0, True, 0
        self.part: Copies | None = None

    def coefficients(self, pace: Pace) -> Array:
        return np.array([pace.rate])

    def begin_tick(self) -> None:
        pass

    def submit(self, task: Task, learner: int | None) -> None:
        self.log.append((task.purpose, task.number, task.tick, learner))
        self.learners[learner or 0].submit(task)

    def await_results(self) -> None:
        self.awaited += 1

    def end_tick(self, task: Task) -> None:
        self.log.append(("end", task.number, task.tick))

    def adapt(self, pace: Pace, drain: Any) -> Any:
        return self.decision

    def observe(self, result: Completed) -> None:
        self.log.append(("observed", result.task))

    def settle(self) -> None:
        self.log.append("settle")

    def keep_part(self) -> Copies | None:
        self.log.append("keep part")
        return self.part

    def abandon(self) -> bool:
        self.log.append("abandon")
        return self.goes_on

    def restart(self, tick: int) -> None:
        self.log.append(("restart", tick))

    def merges(self, tick: int) -> int:
        return tick

    def whole_ticks(self, tasks: int) -> int:
        self.log.append(("whole ticks of", tasks))
        return self.whole

    def members(self) -> list[Any]:
        return list(self.learners)


class FakeLoader:
    """Batches of four examples, in slots that take turns."""

    def __init__(self, *, aborted: bool = False) -> None:
        self.count, self.aborted = 0, aborted

    def next(self) -> tuple[int, int, int]:
        if self.aborted:
            raise Aborted
        self.count += 1
        return (self.count - 1) % 8, self.count - 1, 4


def new_flow(coordination: Any, reports: Reports) -> Flow:
    return Flow(reports, len(coordination.learners), coordination, Recorder())
