"""The order in which simulated learners finish their tasks: given, or by a virtual clock."""

from __future__ import annotations

import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from crossbow.conf import is_integer, is_number
from crossbow.synch.arguments import listed, refused

CHANGE, MESSAGE, FINISH = range(3)
"""Kinds of events. At the same time, members change first, then messages arrive, then learners finish."""


class FinishOrder(ABC):
    """Decides which learner finishes next, and when."""

    now: float = 0.0
    """The time."""
    under_way: int = 0
    """Number of messages that have not arrived."""

    @abstractmethod
    def started(self, learner: int, delay: float = 0.0) -> None:
        """Called when the learner begins a task, after this delay."""

    @abstractmethod
    def next(self, running: set[int]) -> tuple[float, int] | None:
        """Time and number of the next running learner to finish; None at the end."""

    def send(self, delay: float, arrive: Callable[[], None]) -> None:
        """Call `arrive` after this delay: at once if there is none."""
        assert not delay, "a given order has no clock"
        arrive()

    def change(self, time: float, action: Callable[[], None]) -> None:
        """Call `action`, a change of the members, at this time, while learners are running."""
        raise AssertionError("a given order has no clock")


class Scripted(FinishOrder):
    """A given order. Events of learners that are not running are postponed."""

    def __init__(self, events: list[int]) -> None:
        self._events, self._postponed, self._count = deque(events), list[int](), 0

    def started(self, learner: int, delay: float = 0.0) -> None:
        pass

    def next(self, running: set[int]) -> tuple[float, int] | None:
        learner = self._postponed_of(running)
        while learner is None:
            if not self._events:
                return None
            first = self._events.popleft()
            if first in running:
                learner = first
            else:
                self._postponed.append(first)
        self.now = float(self._count)
        self._count += 1
        return self.now, learner

    def _postponed_of(self, running: set[int]) -> int | None:
        for place, learner in enumerate(self._postponed):
            if learner in running:
                return self._postponed.pop(place)
        return None


class Timed(FinishOrder):
    """The order of a virtual clock."""

    def __init__(self, seconds: Sequence[float], events: float) -> None:
        """seconds: duration of each learner's tasks. events: number of tasks to finish; ∞ for all that begin."""
        self._seconds, self._left = seconds, events
        self._tickets = Counter[int]()
        """Number of tasks that each learner has begun. The end of an earlier one, which was abandoned, is ignored."""
        self._numbers = itertools.count()
        self._agenda: list[tuple[float, int, int, int, Callable[[], None] | None]] = []
        """Heap of events: time, kind, learner or number, ticket, and the function to call."""

    def started(self, learner: int, delay: float = 0.0) -> None:
        self._tickets[learner] += 1
        end = self.now + delay + self._seconds[learner]
        heapq.heappush(self._agenda, (end, FINISH, learner, self._tickets[learner], None))

    def send(self, delay: float, arrive: Callable[[], None]) -> None:
        if not delay:
            arrive()
            return
        self.under_way += 1
        heapq.heappush(self._agenda, (self.now + delay, MESSAGE, next(self._numbers), 0, arrive))

    def change(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time, CHANGE, next(self._numbers), 0, action))

    def next(self, running: set[int]) -> tuple[float, int] | None:
        """After the last task, messages that are under way still arrive."""
        while self._agenda and (self.under_way or (running and self._left)):
            time, kind, number, ticket, action = heapq.heappop(self._agenda)
            if action is None:
                if self._left and number in running and ticket == self._tickets[number]:
                    self._left, self.now = self._left - 1, time
                    return time, number
            elif kind == MESSAGE or self._left:
                self.now = time
                self.under_way -= kind == MESSAGE
                action()
        return None


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
    # Tasks of a lost learner are done again, so a run of all tasks may have more events than tasks.
    everything = events is None and tasks is not None
    if not everything and (not is_integer(events) or events < 0):  # type: ignore[operator]
        raise refused("events", events, "an integer ≥ 0 with speeds=, or None with speeds= and tasks=")
    return Timed([1 / speed for speed in speeds], math.inf if everything else events)  # type: ignore[arg-type]


def speeds_of(learners: int, speeds: Iterable[float] | None) -> list[float] | None:
    """One speed for each learner, or None if none are given. Raises ConfigurationError."""
    if speeds is None:
        return None
    given = listed(speeds)
    if given is None or len(given) != learners or not all(is_number(speed) and speed > 0 for speed in given):
        raise refused("speeds", speeds, f"{learners} numbers > 0")
    return given
