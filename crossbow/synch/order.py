"""The order in which simulated learners finish their tasks: given, or by a virtual clock."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from crossbow.conf import is_integer, is_number
from crossbow.synch.arguments import listed, refused


class FinishOrder(ABC):
    """Decides which learner finishes next."""

    @abstractmethod
    def started(self, learner: int) -> None:
        """Called when the learner has begun a task."""

    @abstractmethod
    def next(self, running: set[int]) -> tuple[float, int] | None:
        """Time and number of the next running learner to finish; None at the end."""


class Scripted(FinishOrder):
    """A given order. Events of learners that are not running are postponed."""

    def __init__(self, events: list[int]) -> None:
        self._events, self._count = events, 0

    def started(self, learner: int) -> None:
        pass

    def next(self, running: set[int]) -> tuple[float, int] | None:
        for place, learner in enumerate(self._events):
            if learner in running:
                del self._events[place]
                self._count += 1
                return float(self._count - 1), learner
        return None


class Timed(FinishOrder):
    """The order of a virtual clock."""

    def __init__(self, seconds: Sequence[float], events: int) -> None:
        self._seconds, self._left, self._now = seconds, events, 0.0
        self._ends: list[tuple[float, int]] = []

    def started(self, learner: int) -> None:
        heapq.heappush(self._ends, (self._now + self._seconds[learner], learner))

    def next(self, running: set[int]) -> tuple[float, int] | None:
        if not self._left or not self._ends:
            return None
        self._left -= 1
        self._now, learner = heapq.heappop(self._ends)
        return self._now, learner


def order_of(
    learners: int, events: Sequence[int] | int | None, speeds: Sequence[float] | None, tasks: int | None
) -> FinishOrder:
    """The order that `simulate`'s arguments define, with speeds as `speeds_of` returns them. Raises
    ConfigurationError."""
    if tasks is not None and (not is_integer(tasks) or tasks < 0):
        raise refused("tasks", tasks, "an integer ≥ 0 or None")
    if speeds is None:
        order = listed(events)
        if order is None or not all(is_integer(i) and 0 <= i < learners for i in order):
            raise refused("events", events, f"learners' numbers, 0 to {learners - 1}, or a count with speeds=")
        return Scripted(order)
    count = tasks if events is None else events
    if not is_integer(count) or count < 0:  # type: ignore[operator]
        raise refused("events", events, "an integer ≥ 0 with speeds=, or None with speeds= and tasks=")
    return Timed([1 / speed for speed in speeds], count)  # type: ignore[arg-type]


def speeds_of(learners: int, speeds: Iterable[float] | None) -> list[float] | None:
    """One speed for each learner, or None if none are given. Raises ConfigurationError."""
    if speeds is None:
        return None
    given = listed(speeds)
    if given is None or len(given) != learners or not all(is_number(speed) and speed > 0 for speed in given):
        raise refused("speeds", speeds, f"{learners} numbers > 0")
    return given
