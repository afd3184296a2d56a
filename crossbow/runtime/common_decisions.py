"""Decisions of a training run that depend on time, signals or monitors: rank 0 makes them for all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from crossbow.cluster.fault import faults_of
from crossbow.cluster.ranks import Ranks


class CommonDecisions:
    """All ranks call the methods `at_tick`, `look_for_signals` and `decide` in the same order."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.received = 0
        """The last signal that this process has received."""
        self.interrupted = 0
        """The signal for which all ranks end training."""
        self.pauses = False
        """Whether to pause at this tick boundary."""
        self._faults = faults_of(os.environ) if ranks.connected else ()
        self._struck = -1
        """Number of the view in which a fault has happened."""

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self._ranks.several

    def receive(self, signal: int) -> None:
        """Note a signal. Called by its handler."""
        self.received = signal

    def decide(self, decide: Callable[[], Any]) -> Any:
        """Rank 0's decision, a JSON value. It must not depend on what differs between ranks elsewhere."""
        return self._ranks.agree(decide)

    def regrouped(self) -> None:
        """Forget a pause that was decided with ranks that have left."""
        self.pauses = False

    def at_tick(self, stops: Callable[[], bool], pauses: Callable[[], bool]) -> bool:
        """Decide at a tick boundary whether to stop, which is returned, and whether to pause."""

        def decide() -> tuple[bool, bool, int]:
            self.interrupted = self._signal()
            return stops(), pauses(), self.interrupted

        self._tell_first()
        stop, self.pauses, self.interrupted = self.decide(decide)
        return bool(stop)

    def look_for_signals(self) -> int:
        """The signal for which all ranks end training, also one that has just arrived; 0 if there is none."""
        self._tell_first()
        self.interrupted = self.decide(self._signal)
        return self.interrupted

    def fault_is_due(self, tick: int) -> bool:
        """Whether a rank is to be lost on purpose at this tick, for which all ranks pause."""
        view = self._ranks.view.number
        return view < len(self._faults) and view != self._struck and self._faults[view].tick == tick

    def strike(self, tick: int) -> None:
        """Kill this process if the fault that is due is this rank's. All ranks have paused."""
        if self.fault_is_due(tick):
            self._struck = self._ranks.view.number
            if self._faults[self._struck].rank == self._ranks.rank:
                self._faults[self._struck].strike()

    def _signal(self) -> int:
        return self.interrupted or self.received or self._ranks.asked_to_stop()

    def _tell_first(self) -> None:
        """Tell rank 0 of a signal that this rank has received."""
        if self.received and not self._ranks.is_first:
            self._ranks.ask_to_stop(self.received)
            self.received = 0
