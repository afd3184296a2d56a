"""The work clock: which task runs on which learner in which tick. Pure arithmetic, and a schedule that is data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from crossbow.types import ConfigurationError


class ScheduledTask(NamedTuple):
    """A task's number, the learner it goes to, and whether it ends the tick for that learner."""

    task: int
    learner: int
    synchronises: bool


@dataclass(frozen=True)
class WorkClock:
    """A tick is `tasks_per_tick` (wpc) tasks: τ for every learner, dealt in turn, unless there is no barrier."""

    learners: int
    tau: int
    wpc: int | None = None
    """Without a barrier: the tasks in a tick, where they are not k · τ."""

    @property
    def tasks_per_tick(self) -> int:
        return self.wpc or self.learners * self.tau

    def schedule(self, first: int) -> Iterator[ScheduledTask]:
        """The tasks of a tick that begins with task `first`, in order, dealt to the learners in turn. One by one, for a
        tick may be very long."""
        for number in range(self.tasks_per_tick):
            yield ScheduledTask(first + number, number % self.learners, number // self.learners == self.tau - 1)


def work_clock(learners: int, tau: int, wpc: int | None, *, barrier: bool = True) -> WorkClock:
    """The clock for a rule's τ, or for `wpc` tasks in a tick. Raises ConfigurationError where the two disagree."""
    if wpc is None or not barrier:
        return WorkClock(learners, tau, wpc)
    if wpc % learners:
        raise ConfigurationError(
            f"ModelConf: wpc must be a multiple of the number of learners, {learners}, under a rule with a barrier. "
            f"Received: wpc={wpc}"
        )
    if tau not in (1, wpc // learners):
        raise ConfigurationError(
            f"ModelConf: wpc={wpc} with {learners} learners means tau={wpc // learners}. Received: a rule of tau={tau}"
        )
    return WorkClock(learners, wpc // learners)
