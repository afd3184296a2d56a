"""The activity of a learner, and its durations."""

from __future__ import annotations

from typing import Literal, NamedTuple

from crossbow.kernels.interface import State
from crossbow.types import Array

Doing = Literal["computing", "averaging", "waiting", "no task"]
"""Activities of a learner; "waiting" means for other learners. A learner without a task waits for data, for the
scheduler or, without a barrier, for other learners."""


class Spent(NamedTuple):
    """Seconds of a learner's training tasks since the start, and the number of images."""

    in_tasks: float = 0.0
    """Seconds in task lists, including waits and averages."""
    waiting: float = 0.0
    """Part of `in_tasks` in which it waited for other learners, in seconds."""
    averaging: float = 0.0
    """Seconds in which it computed averages or exchanged, including the wait for the exchange's lock."""
    exchanging: float = 0.0
    """Part of `averaging` outside task lists, in seconds."""
    images: int = 0


class Activity:
    """A CPU learner's activity. Its thread writes, and any thread may read."""

    def __init__(self, state: Array) -> None:
        """state: the state of the learner's tasks."""
        self._state = state.data  # a memoryview: its elements are read in a third of the time of an array's
        self._spent = Spent()
        self._doing: Doing = "no task"

    def begin(self) -> None:
        """Record that a task begins."""
        self._state[State.SINCE] = 0
        self._doing = "computing"

    def exchange(self) -> None:
        """Record that the task list ends, and an exchange begins."""
        self._doing = "averaging"

    def end(self) -> None:
        """Record that a task ends."""
        self._doing = "no task"

    def add(self, in_tasks: float, exchanging: float, images: int) -> None:
        """Add the seconds of a training task, and its images."""
        before_in_tasks, _, _, before_exchanging, before_images = self._spent
        state, exchanging = self._state, before_exchanging + exchanging
        self._spent = Spent(
            before_in_tasks + in_tasks,
            state[State.WAITED] * 1e-9,
            state[State.AVERAGED] * 1e-9 + exchanging,
            exchanging,
            before_images + images,
        )

    @property
    def doing(self) -> Doing:
        """The current activity of the learner."""
        since = self._state[State.SINCE]
        if self._doing != "computing" or since == 0:
            return self._doing
        return "waiting" if since > 0 else "averaging"

    @property
    def spent(self) -> Spent:
        """The learner's time until the end of its last task."""
        return self._spent
