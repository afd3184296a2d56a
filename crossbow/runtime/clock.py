"""The work clock, which assigns tasks to learners and ticks. It is pure arithmetic, and a schedule is data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from crossbow.runtime.task import Purpose
from crossbow.types import ConfigurationError


class ScheduledTask(NamedTuple):
    """A task's number, its purpose, and its learner; None means the next free learner."""

    task: int
    purpose: Purpose
    learner: int | None


@dataclass(frozen=True)
class WorkClock:
    """A clock whose tick has `tasks_per_tick` (wpc) tasks: with a barrier, τ for every learner, in rotation. With two
    levels, a tick of z is several ticks of the hosts."""

    learners: int
    tau: int
    wpc: int | None = None
    """Without a barrier, the number of tasks in a tick; None for k · τ."""
    barrier: bool = True
    host_ticks: int | None = None
    """Number of ticks of the hosts in a tick of z; None with one level."""

    @property
    def tasks_per_tick(self) -> int:
        """Number of tasks, of all learners, in a tick of z."""
        return self.tasks_per_host_tick * self.ticks

    @property
    def ticks(self) -> int:
        """Number of ticks of the hosts in a tick of z; 1 with one level."""
        return self.host_ticks or 1

    @property
    def tasks_per_host_tick(self) -> int:
        """Number of tasks, of all learners, in a tick of the hosts; with one level, in a tick."""
        return self.wpc or self.learners * self.tau

    def whole_ticks(self, tasks: int) -> int:
        """The number of tasks, rounded up to whole ticks, and at least 0."""
        return max(0, -(-tasks // self.tasks_per_tick) * self.tasks_per_tick)

    def schedule(self, first: int) -> Iterator[ScheduledTask]:
        """The tasks of a tick (with two levels, of the hosts) that begins with task `first`, in order. They rotate over
        the learners, whose last tasks end the tick; without a barrier, they go to any free learner. Returns an
        iterator, because a tick may be very long."""
        for number in range(self.tasks_per_host_tick):
            if self.barrier:
                last = number // self.learners == self.tau - 1
                yield ScheduledTask(first + number, "synchronise" if last else "local", number % self.learners)
            else:
                yield ScheduledTask(first + number, "train", None)


def fitted_wpc(wpc: int | None, tau: int, learners: int) -> int | None:
    """The number of tasks in a tick after a change of the number of learners: the multiple of that number that is
    nearest to `wpc`; with τ > 1, τ tasks of each learner.

    >>> fitted_wpc(8, 1, 3), fitted_wpc(8, 2, 3), fitted_wpc(8, 1, 30), fitted_wpc(None, 2, 3)
    (9, 6, 30, None)
    """
    if wpc is None:
        return None
    return learners * (tau if tau > 1 else max(1, round(wpc / learners)))


def work_clock(
    learners: int, tau: int, wpc: int | None, *, barrier: bool = True, host_ticks: int | None = None
) -> WorkClock:
    """The clock for a rule's τ, or for `wpc` tasks in a tick. Raises ConfigurationError if the two disagree."""
    if wpc is None or not barrier:
        return WorkClock(learners, tau, wpc, barrier, host_ticks)
    if wpc % learners:
        raise ConfigurationError(
            f"ModelConf: wpc must be a multiple of the number of learners, {learners}, under a rule with a barrier. "
            f"Received: wpc={wpc}"
        )
    if tau not in (1, wpc // learners):
        raise ConfigurationError(
            f"ModelConf: wpc={wpc} with {learners} learners means tau={wpc // learners}. Received: a rule of tau={tau}"
        )
    return WorkClock(learners, wpc // learners, host_ticks=host_ticks)
