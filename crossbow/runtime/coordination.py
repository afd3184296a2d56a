"""Coordination of learners: the assignment of tasks, and the synchronisation between learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from crossbow.runtime.backend import Learner
from crossbow.runtime.copies import Copies
from crossbow.runtime.results import AnyDecision
from crossbow.runtime.task import Completed, Task
from crossbow.solver import Pace
from crossbow.types import Array


class Coordination(Protocol):
    """A backend's learners and their synchronisation. `tick.py` and `free.py` implement it."""

    @property
    def learners(self) -> Sequence[Learner]: ...

    @property
    def in_order(self) -> bool:
        """Whether results are reported in task order."""

    @property
    def counts_in_results(self) -> bool:
        """Whether, while tasks run, the ranks know the number of merges only from results."""

    # Scheduling

    def coefficients(self, pace: Pace) -> Array:
        """Coefficients of all updates at this pace."""

    def begin_tick(self) -> None:
        """Prepare for the tasks of a tick."""

    def submit(self, task: Task, learner: int | None) -> None:
        """Give the task to this learner, or with None to the next free one."""

    def await_results(self) -> None:
        """Record that no task will be submitted until learners have finished some."""

    def end_tick(self, task: Task) -> None:
        """End a tick whose tasks were all submitted. task: the task that ends the tick."""

    def exchange_hosts(self, pace: Pace, tick: int) -> None:
        """With two levels, exchange with the other hosts at the end of a tick of z. tick: the host's next tick. No task
        may be running."""

    def adapt(self, pace: Pace, drain: Callable[[], None]) -> AnyDecision | None:
        """Adapt to measurements, between two ticks. drain: waits until no task is running."""

    def observe(self, result: Completed) -> None:
        """Observe a result of training. Called on the scheduler's thread."""

    # When nothing is running

    def settle(self) -> None:
        """Compute the parts of z that are not computed in every tick. No task may be running."""

    def keep_part(self) -> Copies | None:
        """After the loss of a rank, when no task is running: store this rank's copies of parts of z in its base model.
        Returns their description; None if every rank has the whole z of a tick."""

    def abandon(self) -> bool:
        """After a failure, discard the tasks that wait for a learner. Returns whether learners can continue."""

    def restart(self, tick: int) -> None:
        """Continue at this tick, after all learners have copied z."""

    def begin(self, tick: int) -> None:
        """Begin at this tick, which another engine has reached."""

    def state(self) -> dict[str, Any]:
        """The state between two ticks, except vectors, as JSON values: counters, clocks, waiting learners."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of learners with the same rule, after `restart`."""

    # Counting

    def merges(self, tick: int) -> int:
        """Number of merges into z in this many ticks."""

    def arrivals(self) -> tuple[int, int, int] | None:
        """Numbers of complete and of dropped contributions since the start, and the sum of their staleness; None if
        they are not counted."""

    def whole_ticks(self, tasks: int) -> int:
        """Number of ticks that completed before a failure. tasks: number of this engine's tasks with known results."""

    def members(self) -> list[Learner]:
        """The learners and the synchroniser, to which tasks are submitted."""
