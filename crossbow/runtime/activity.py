"""What learners do, and where their time goes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossbow.kernels.interface import State
from crossbow.runtime.results import LearnerRecord
from crossbow.types import Array

Doing = Literal["computing", "averaging", "waiting", "no task"]
"""What a learner does: "waiting" is for other learners. A learner without a task waits for data, for the scheduler or,
without a barrier, for other learners."""


@dataclass(frozen=True)
class Spent:
    """Seconds of a learner's training tasks since the start, and what they processed."""

    in_tasks: float = 0.0
    """Seconds in task lists, waits and averages included."""
    waiting: float = 0.0
    """Of these, seconds in which it waited for other learners."""
    averaging: float = 0.0
    """Seconds in which it computed averages, or its exchange, with the wait for the exchange's lock."""
    exchanging: float = 0.0
    """Of these, seconds outside task lists."""
    images: int = 0


class Activity:
    """A CPU learner's activity. Its thread writes, and any thread may read."""

    def __init__(self, state: Array) -> None:
        """state: the state of the learner's tasks."""
        self._state = state
        self._in_tasks = self._exchanging = 0.0
        self._images = 0
        self._doing: Doing = "no task"

    def begin(self) -> None:
        """A task begins."""
        self._state[State.SINCE] = 0
        self._doing = "computing"

    def exchange(self) -> None:
        """The task list ends, and an exchange begins."""
        self._doing = "averaging"

    def end(self) -> None:
        """A task ends."""
        self._doing = "no task"

    def add(self, in_tasks: float, exchanging: float, images: int) -> None:
        """Add the seconds of a training task, and its images."""
        self._in_tasks += in_tasks
        self._exchanging += exchanging
        self._images += images

    @property
    def doing(self) -> Doing:
        """What the learner does now."""
        since = int(self._state[State.SINCE])
        if self._doing != "computing" or since == 0:
            return self._doing
        return "waiting" if since > 0 else "averaging"

    @property
    def spent(self) -> Spent:
        """The learner's time until now; a task that runs counts when it ends."""
        waiting, averaging = (int(self._state[index]) / 1e9 for index in (State.WAITED, State.AVERAGED))
        return Spent(self._in_tasks, waiting, averaging + self._exchanging, self._exchanging, self._images)


class Stopwatch:
    """The learners' time from a moment on."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        self._began = time.perf_counter()
        self._before: Mapping[Activity, Spent] = {activity: activity.spent for activity in activities}

    def records(
        self,
        activities: Sequence[Activity],
        distances: Sequence[float | None],
        data_wait: float,
        *,
        barrier: bool,
        seconds: float | None = None,
    ) -> tuple[LearnerRecord, ...]:
        """One record for each learner. Empty if there are other learners than at the beginning, or none whose time is
        measured.

        data_wait: share of the time in which learners waited for data, as a mean. seconds: the time that passed; None
        is until now. With a barrier, a learner without a task waits for data or the scheduler; without one, it waits
        for data or other learners.
        """
        if not activities or any(activity not in self._before for activity in activities):
            return ()
        wall = max(time.perf_counter() - self._began if seconds is None else seconds, 1e-9)
        found = []
        for number, (activity, distance) in enumerate(zip(activities, distances, strict=True)):
            now, before = activity.spent, self._before[activity]
            in_tasks, waiting = now.in_tasks - before.in_tasks, now.waiting - before.waiting
            averaging, exchanging = now.averaging - before.averaging, now.exchanging - before.exchanging
            idle = max(0.0, wall - in_tasks - exchanging)
            data = min(idle, data_wait * wall)
            found.append(
                LearnerRecord(
                    learner=number,
                    computing=_share(in_tasks - waiting - (averaging - exchanging), wall),
                    averaging=_share(averaging, wall),
                    waiting=_share(waiting if barrier else idle - data, wall),
                    data=_share(data, wall),
                    images_per_second=(now.images - before.images) / wall,
                    distance=distance,
                )
            )
        return tuple(found)


def _share(seconds: float, of: float) -> float:
    return min(1.0, max(0.0, seconds / of))


BLOCK = 1 << 16
"""Elements that are compared at a time, so that they stay in the cache."""


def distance(weights: Array, base: Array, blocks: int | None = None) -> float:
    """‖w − z‖ / ‖z‖ in float64; infinite if only z is zero. blocks: estimate it from at most this many blocks of 65,536
    elements, evenly spaced; None compares all."""
    count = -(-base.size // BLOCK)
    chosen = range(count) if blocks is None or blocks >= count else np.linspace(0, count - 1, blocks).astype(int)
    difference = norm = 0.0
    for block in chosen:
        place = slice(int(block) * BLOCK, (int(block) + 1) * BLOCK)
        w, z = (vector[place].astype(np.float64) for vector in (weights, base))
        apart = w - z
        difference += float(apart @ apart)
        norm += float(z @ z)
    return 0.0 if difference == 0 else float(np.sqrt(difference / norm)) if norm else float("inf")
