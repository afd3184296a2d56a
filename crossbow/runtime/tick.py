"""Coordination by a clock tick: every learner contributes to the next z before any of them uses it.

`Merging` specifies the vectors to combine, the same on every device. The backend decides their order, and how learners
wait for each other: by flags in task lists (`cpu/tick.py`), or by events of streams (`cuda/tick.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Backend, Learner
from crossbow.runtime.coefficients import tick_formulas
from crossbow.runtime.hosts import HostExchange
from crossbow.runtime.merging import Merging
from crossbow.runtime.reports import Reports
from crossbow.runtime.results import AnyDecision
from crossbow.runtime.task import Completed, Task
from crossbow.solver import Pace
from crossbow.solver.update import total
from crossbow.synch import Collective
from crossbow.types import Array


class TickCoordination:
    """Learners that synchronise in ticks."""

    in_order = True
    counts_in_results = False

    def __init__(self, assembly: Assembly, backend: Backend, reports: Reports, collective: Collective | None) -> None:
        """Raises ConfigurationError."""
        setting, ranges = assembly.setting, assembly.arithmetic.ranges
        self._flags, self._first = assembly.flags, setting.placement.first
        learners = setting.tick_learners
        mean = total("sent", [1 / learners] * learners) if not setting.adds_parts else None
        self._formulas = tick_formulas(
            setting.barrier_rule,
            setting.solver,
            learners,
            ranges.multipliers,
            mean,
            keeps=bool(ranges.kept),
            mean_first=setting.mean_first,
        )
        merging = Merging(
            assembly.arithmetic,
            setting.barrier_rule,
            learners,
            setting.clips_own,
            setting.clips_mean,
            first=setting.placement.first,
            adds_parts=setting.adds_parts,
            chained=setting.chained and collective is None,
            mean_first=setting.mean_first,
        )
        made = backend.tick(assembly, merging, self._formulas, reports, collective)
        self.learners, self.synchroniser, self._abandon = made.learners, made.synchroniser, made.abandon
        self._hosts = None if assembly.outer is None else HostExchange(assembly, assembly.outer, backend)

    def coefficients(self, pace: Pace) -> Array:
        """Coefficients of all updates at this pace."""
        return self._formulas.at(pace)

    def begin_tick(self) -> None:
        """Do nothing."""

    def submit(self, task: Task, learner: int | None) -> None:
        """Give the task to its learner."""
        assert learner is not None
        self.learners[learner - self._first].submit(task)

    def await_results(self) -> None:
        """Do nothing: every learner has its tasks."""

    def end_tick(self, task: Task) -> None:
        """End a tick whose tasks were all submitted."""
        if self.synchroniser is not None:
            self.synchroniser.submit(task)

    def exchange_hosts(self, pace: Pace, tick: int) -> None:
        """Exchange with the other hosts at the end of a tick of z."""
        if self._hosts is not None:
            self._hosts.exchange(pace, tick)

    def adapt(self, pace: Pace, drain: Callable[[], None]) -> AnyDecision | None:
        """Do nothing, because ticks measure nothing."""
        return None

    def observe(self, result: Completed) -> None:
        """Do nothing, because ticks measure nothing."""

    def settle(self) -> None:
        """Do nothing: every tick ends with a complete z."""

    def keep_part(self) -> None:
        """None: every rank has the whole z of a tick."""

    def abandon(self) -> bool:
        """No task waits, because all were given to their learners. GPUs of several ranks cannot continue."""
        return self._abandon()

    def restart(self, tick: int) -> None:
        """Continue at this tick, after all learners have copied z."""
        self._flags.reset(tick)

    def begin(self, tick: int) -> None:
        """Do nothing: there are no counters."""

    def state(self) -> dict[str, Any]:
        """An empty state: between two ticks, no learner waits."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""

    def merges(self, tick: int) -> int:
        """Number of merges: one in every tick."""
        return tick

    def arrivals(self) -> None:
        """None: every contribution is new, and none is dropped."""

    def whole_ticks(self, tasks: int) -> int:
        """Number of ticks with a complete z. tasks: number of tasks with known results."""
        return self._flags.whole_ticks

    def members(self) -> list[Learner]:
        """The learners and the synchroniser."""
        return [*self.learners, *([] if self.synchroniser is None else [self.synchroniser])]
