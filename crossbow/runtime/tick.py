"""Coordination by a clock tick: every learner contributes to the next z before any of them uses it.

Which vectors are combined says `Merging`, for every device alike. In which order, and how learners wait for each other,
is up to the backend: flags in task lists (`cpu/tick.py`), or events of streams (`cuda/tick.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Backend, Learner
from crossbow.runtime.coefficients import tick_formulas
from crossbow.runtime.merging import Merging
from crossbow.runtime.reports import Reports
from crossbow.runtime.results import AnyDecision
from crossbow.runtime.task import Completed, Task
from crossbow.solver import Pace
from crossbow.solver.update import total
from crossbow.synch import Collective, Rule
from crossbow.types import Array


class TickCoordination:
    """Learners that work in ticks."""

    in_order = True

    def __init__(self, assembly: Assembly, backend: Backend, reports: Reports, collective: Collective | None) -> None:
        """Raises ConfigurationError."""
        setting, ranges = assembly.setting, assembly.arithmetic.ranges
        self.rule: Rule = setting.rule
        self._flags = assembly.flags
        mean = total("sent", [1 / setting.learners] * setting.learners) if setting.devices == 1 else None
        self._formulas = tick_formulas(
            setting.barrier_rule,
            setting.solver,
            setting.learners,
            ranges.multipliers,
            mean,
            keeps=bool(ranges.kept),
        )
        merging = Merging(
            assembly.arithmetic,
            setting.barrier_rule,
            setting.learners,
            setting.devices,
            setting.clips_own,
            setting.clips_mean,
        )
        made = backend.tick(assembly, merging, self._formulas, reports, collective)
        self.learners, self.synchroniser = made.learners, made.synchroniser

    def coefficients(self, pace: Pace) -> Array:
        """Coefficients of all updates at this pace."""
        return self._formulas.at(pace)

    def submit(self, task: Task, learner: int | None) -> None:
        """Give the task to its learner."""
        assert learner is not None
        self.learners[learner].submit(task)

    def end_tick(self, task: Task) -> None:
        """All tasks of a tick were submitted."""
        if self.synchroniser is not None:
            self.synchroniser.submit(task)

    def adapt(self, pace: Pace, drain: Callable[[], None]) -> AnyDecision | None:
        """Nothing is measured here."""
        return None

    def observe(self, result: Completed) -> None:
        """Nothing is measured here."""

    def settle(self) -> None:
        """Every tick leaves a whole z."""

    def abandon(self) -> None:
        """No task waits: all were given to their learners."""

    def restart(self, tick: int) -> None:
        """All learners have taken z, and go on at this tick."""
        self._flags.reset(tick)

    def begin(self, tick: int) -> None:
        """Another engine's ticks leave nothing to count."""

    def merges(self, tick: int) -> int:
        """One in every tick."""
        return tick

    def whole_ticks(self, tasks: int) -> int:
        """Ticks whose z is whole. tasks: whose results are known."""
        return self._flags.whole_ticks

    def members(self) -> list[Learner]:
        """Learners and synchroniser."""
        return [*self.learners, *([] if self.synchroniser is None else [self.synchroniser])]
