"""What holds learners together: who gets which task, and what happens between learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from crossbow.runtime.backend import Learner
from crossbow.runtime.results import AnyDecision
from crossbow.runtime.task import Completed, Task
from crossbow.solver import Pace
from crossbow.synch import Rule
from crossbow.types import Array


class Coordination(Protocol):
    """Learners of a backend, and what they do with each other. `tick.py` and `exchange.py` implement it."""

    @property
    def rule(self) -> Rule:
        """The rule that is followed now."""

    @property
    def learners(self) -> Sequence[Learner]: ...

    @property
    def in_order(self) -> bool:
        """Whether results are handed on in task order."""

    # Scheduling

    def coefficients(self, pace: Pace) -> Array:
        """Coefficients of all updates at this pace."""

    def submit(self, task: Task, learner: int | None) -> None:
        """Give the task to that learner; None: to the next one that is free."""

    def end_tick(self, task: Task) -> None:
        """All tasks of a tick were submitted. task: the end of the tick."""

    def adapt(self, pace: Pace, drain: Callable[[], None]) -> AnyDecision | None:
        """Between two ticks: change what goes by measurements. drain: waits until nothing is running."""

    def observe(self, result: Completed) -> None:
        """A result of training, on the scheduler's thread."""

    # When nothing is running

    def settle(self) -> None:
        """Make what is not made in every tick: nothing may be running."""

    def abandon(self) -> None:
        """After a failure: no task that waits for a learner begins any more."""

    def restart(self, tick: int) -> None:
        """All learners have taken z, and go on at this tick."""

    def begin(self, tick: int) -> None:
        """Go on at that tick, to which another engine has come, as if nothing had been before."""

    # Counting

    def merges(self, tick: int) -> int:
        """How often z was made anew in so many ticks."""

    def whole_ticks(self, tasks: int) -> int:
        """Ticks that were done before a failure. tasks: of this engine, whose results are known."""

    def members(self) -> list[Learner]:
        """Everything that tasks were submitted to."""
