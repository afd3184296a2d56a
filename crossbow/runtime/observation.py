"""Measurements of the learners for records and progress: their time, their distance from z, their contributions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.dataflow.graph import other_measures
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.coordination import Coordination
from crossbow.runtime.flow import Flow
from crossbow.runtime.memory import on_host
from crossbow.runtime.recovery import Recovery
from crossbow.runtime.results import LearnerRecord
from crossbow.types import Array


class Observation:
    """Observes the learners of an engine, and knows the metrics of its tests."""

    def __init__(self, assembly: Assembly, coordination: Coordination, recovery: Recovery, flow: Flow) -> None:
        self._replicas, self._coordination, self._recovery = assembly.replicas, coordination, recovery
        self._flow, self._part = flow, assembly.part
        self.barrier = assembly.setting.barrier
        """Whether learners wait for each other at ticks."""
        others = [] if assembly.check is None else other_measures(assembly.check.program.graph)
        self.metrics = tuple(vertex.name for vertex in others)
        """Names of the metrics that tests report beside the accuracy."""
        found = [learner.activity for learner in coordination.learners]
        self.activities = [activity for activity in found if activity is not None]
        """The activity of each learner; empty if it is not measured."""

    def distances(self, blocks: int | None = None) -> list[float | None]:
        """‖w_i − z‖ / ‖z‖ of each learner, or an estimate from this many blocks (`distances`), which may be computed
        while tasks run if vectors are in the host's memory; None for learners that read z itself. While tasks run, a
        server knows only its own part of z."""
        place = slice(None) if blocks is None or self._part is None else self._part
        weights = [None if replica.weights is None else on_host(replica.weights)[place] for replica in self._replicas]
        return distances(weights, on_host(self._recovery.base[0])[place], blocks)

    @property
    def data_wait_seconds(self) -> float:
        """Seconds of training in which learners waited for data, as a mean over the learners."""
        return self._flow.data_wait_seconds

    @property
    def arrivals(self) -> tuple[int, int, int] | None:
        """Numbers of complete and of dropped contributions since the start, and the sum of their staleness; None if
        they are not counted."""
        return self._coordination.arrivals()


@dataclass(frozen=True)
class Measured:
    """The result of a measurement; see `Record`."""

    data_wait: float
    learners: tuple[LearnerRecord, ...] = ()
    """Empty if the number of learners changed, or if their time is not measured."""


class Measurement:
    """A measurement of learners that begins with the creation of this object."""

    def __init__(self, observation: Observation) -> None:
        self._observation, self._waited = observation, observation.data_wait_seconds
        self._before = [activity.spent for activity in observation.activities]

    def is_of(self, observation: Observation) -> bool:
        """Whether this is still the observed engine."""
        return observation is self._observation

    def measure(self, observation: Observation, seconds: float, blocks: int | None = None) -> Measured:
        """End the measurement. observation: observation of the current engine. seconds: duration of the measurement.
        blocks: see `Observation.distances`."""
        seconds = max(seconds, 1e-9)
        data_wait = min(1.0, max(0.0, observation.data_wait_seconds - self._waited) / seconds)
        if not self.is_of(observation):
            return Measured(data_wait)
        return Measured(data_wait, tuple(self._learners(data_wait, seconds, blocks)))

    def _learners(self, data_wait: float, seconds: float, blocks: int | None) -> Iterator[LearnerRecord]:
        """With a barrier, a learner without a task waits for data or the scheduler; without one, it waits for data or
        other learners."""
        observation = self._observation
        if not observation.activities:
            return
        for number, (activity, before, far) in enumerate(
            zip(observation.activities, self._before, observation.distances(blocks), strict=True)
        ):
            now = activity.spent
            in_tasks, waiting = now.in_tasks - before.in_tasks, now.waiting - before.waiting
            averaging, exchanging = now.averaging - before.averaging, now.exchanging - before.exchanging
            idle = max(0.0, seconds - in_tasks - exchanging)
            data = min(idle, data_wait * seconds)
            wall = max(seconds, in_tasks + exchanging)  # a task counts when it ends, even the part before the stretch
            yield LearnerRecord(
                learner=number,
                computing=_share(in_tasks - waiting - (averaging - exchanging), wall),
                averaging=_share(averaging, wall),
                waiting=_share(waiting if observation.barrier else idle - data, wall),
                data=_share(data, wall),
                images_per_second=(now.images - before.images) / seconds,
                distance=far,
            )


RECENT = 1.0
"""Seconds of a measurement of the learners for progress."""
BLOCKS = 4
"""Number of blocks of the vectors from which progress estimates the learners' distances from z while tasks run."""


class RecentLearners:
    """The learners' records for progress. They are measured about once a second and, at first, are those of the last
    stretch."""

    def __init__(self) -> None:
        self._records: tuple[LearnerRecord, ...] = ()
        self._measurement: Measurement | None = None
        """The measurement under way; None before the first of a stretch."""
        self._began = 0.0

    def begin_stretch(self) -> None:
        """Measure anew, because training did not continue at once."""
        self._measurement = None

    def end_stretch(self, records: tuple[LearnerRecord, ...]) -> None:
        """Set the records of a whole stretch."""
        self._records = records

    def at(self, now: float, observation: Observation) -> tuple[LearnerRecord, ...]:
        """The newest records. now: time in seconds. observation: observation of the current engine."""
        if self._measurement is not None and now < self._began + RECENT:
            return self._records
        if self._measurement is not None:
            self._records = self._measurement.measure(observation, now - self._began, BLOCKS).learners
        self._measurement, self._began = Measurement(observation), now
        return self._records


def arrived(before: tuple[int, int, int] | None, now: tuple[int, int, int] | None) -> tuple[float | None, int | None]:
    """Mean staleness and number of dropped contributions between two counts (`Observation.arrivals`)."""
    if before is None or now is None:
        return None, None
    arrivals, dropped, staleness = (later - earlier for earlier, later in zip(before, now, strict=True))
    return (staleness / arrivals if arrivals else None), dropped


def _share(seconds: float, of: float) -> float:
    return min(1.0, max(0.0, seconds / of))


BLOCK = 1 << 16
"""Elements that are compared at a time, so that they stay in the cache."""


def distances(weights: Sequence[Array | None], base: Array, blocks: int | None = None) -> list[float | None]:
    """‖w − z‖ / ‖z‖ of each w in float64, infinite if only z is zero; None stays None.

    blocks: estimate it from at most this many blocks of 65,536 elements, evenly spaced; None compares all."""
    count = -(-base.size // BLOCK)
    chosen = range(count) if blocks is None or blocks >= count else np.linspace(0, count - 1, blocks).astype(int)
    places = [slice(int(block) * BLOCK, (int(block) + 1) * BLOCK) for block in chosen]
    norm = math.fsum(_sum_of_squares(base[place]) for place in places)

    def distance(w: Array) -> float:
        difference = math.fsum(_sum_of_squares(np.subtract(w[place], base[place])) for place in places)
        return 0.0 if difference == 0 else math.sqrt(difference / norm) if norm else math.inf

    return [None if w is None else distance(w) for w in weights]


def _sum_of_squares(values: Array) -> float:
    # NumPy's dot product may use threads, which stay busy for a while and slow the learners down.
    wide = values.astype(np.float64)
    return float(np.square(wide, out=wide).sum())
