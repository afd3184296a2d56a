"""Progress of training: numbers of ticks and tasks, including those of previous engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A position in training."""

    tick: int
    ticks_of_phase: int
    """Ticks since the beginning of the rule phase."""
    tasks: int


class Position:
    """Counts the ticks of an engine."""

    def __init__(self, tasks_per_tick: int) -> None:
        """tasks_per_tick: number of tasks in a tick; with two levels, in a tick of the hosts."""
        self._tasks_per_tick = tasks_per_tick
        self._tick = self._first_tick = self._tick_of_z = 0
        self._tasks_before = self._merges_before = 0

    @property
    def tick(self) -> int:
        """Ticks done (during a run: submitted)."""
        return self._tick

    @property
    def tick_of_z(self) -> int:
        """With two levels, the tick of the hosts at which z was complete."""
        return self._tick_of_z

    @property
    def tasks_of_z(self) -> int:
        """With two levels, the number of tasks before that tick."""
        return self.tasks - (self._tick - self._tick_of_z) * self._tasks_per_tick

    @property
    def ticks_of_phase(self) -> int:
        """Ticks since the beginning of the rule phase."""
        return self._tick - self._first_tick

    @property
    def tasks(self) -> int:
        """Tasks done since the start."""
        return self._tasks_before + self._tick * self._tasks_per_tick

    @property
    def tasks_before(self) -> int:
        """Tasks of other engines beyond those that this engine would have done in the same number of ticks."""
        return self._tasks_before

    @property
    def merges_before(self) -> int:
        """Merges of other engines beyond this one's."""
        return self._merges_before

    @property
    def place(self) -> Place:
        """The position, for an engine that continues."""
        return Place(self._tick, self.ticks_of_phase, self.tasks)

    def advance(self) -> None:
        """Count a tick."""
        self._tick += 1

    def end_tick_of_z(self) -> None:
        """With two levels, count a tick of z, which ends with the current tick of the hosts."""
        self._tick_of_z = self._tick

    def go_to(self, tick: int) -> None:
        """Set the number of ticks, after which z is complete."""
        self._tick = self._tick_of_z = tick

    def state(self) -> dict[str, int]:
        """All counts, for `restore`."""
        return {
            "tick": self._tick,
            "first_tick": self._first_tick,
            "tasks_before": self._tasks_before,
            "merges_before": self._merges_before,
        }

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from the counts of a position with the same number of tasks in a tick."""
        self.go_to(state["tick"])
        self._first_tick = state["first_tick"]
        self._tasks_before, self._merges_before = state["tasks_before"], state["merges_before"]

    def begin_phase(self) -> None:
        """Begin a rule phase at this tick."""
        self._first_tick = self._tick

    def continue_from(self, place: Place, merges: int, own_merges: int) -> None:
        """Continue from another engine's position and merges. own_merges: number of merges that this engine would have
        counted at that tick."""
        self.go_to(place.tick)
        self._first_tick = place.tick - place.ticks_of_phase
        self._tasks_before += place.tasks - self.tasks
        self._merges_before = merges - own_merges
