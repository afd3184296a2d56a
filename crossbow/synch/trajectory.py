"""The result of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from crossbow.synch.arguments import Vector

Move = tuple[Sequence[int], Vector]
"""Learners, and their new weights: one row for each, or one vector for all of them."""


@dataclass
class ReplicaLog:
    """The learners' weights after each event. Only changes are stored, because an event changes few of many
    learners."""

    start: Vector
    """(learners, n): the first weights; NaN for learners that have not joined."""
    moves: list[list[Move]] = field(default_factory=list)
    """Changes of each event, in order."""

    def replay(self) -> Vector:
        """(events, learners, n): the weights of all learners after each event."""
        made, now = np.empty((len(self.moves), *self.start.shape)), self.start.copy()
        for row, moves in zip(made, self.moves, strict=True):
            for learners, weights in moves:
                now[list(learners)] = weights
            row[...] = now
        return made


@dataclass(frozen=True)
class Trajectory:
    """Result of a simulation: base model and replicas. An event is a task that a learner has finished."""

    base: Vector
    """(merges, n): z after each merge of a tick, a contribution or a group; under a rule without a base model, the
    learners' mean after each event. Dropped contributions and the initial z are not included. For local variables, it
    has the mean at that time; under a rule with a barrier, the mean of the learners' contributions."""
    staleness: NDArray[np.int64]
    """(events,): Y of the contribution, 1 + the number of merges since its learner took z. 0 for events without a
    contribution, for contributions that were lost, and for those whose merge was still incomplete at the end or at a
    restart."""
    dropped: NDArray[np.bool_]
    """(events,): whether the contribution was dropped."""
    events: NDArray[np.int64]
    """(events,): the learner that finished. If a learner may not start, because of its rule or because a restart is
    due, its event is postponed until it may."""
    times: Vector
    """(events,): the time, with `speeds`; else 0, 1, 2, …"""
    merge_times: Vector
    """(merges,): the times of `base`."""
    logs: tuple[ReplicaLog, ...]
    """The logs from which `replicas` is computed, one for each rule of a sequence."""

    @cached_property
    def replicas(self) -> Vector:
        """(events, learners, n): the learners' weights after each event and its exchange; z under rules whose learners
        compute with z itself. With a latency, the exchange is part of the event that follows its arrival at z. NaN for
        absent learners. Computed when it is first read, because it may be large."""
        return np.concatenate([log.replay() for log in self.logs])


def joined(parts: Sequence[Trajectory]) -> Trajectory:
    """The concatenation of trajectories."""
    arrays = ("base", "staleness", "dropped", "events", "times", "merge_times")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays}
    return Trajectory(**columns, logs=tuple(log for part in parts for log in part.logs))
