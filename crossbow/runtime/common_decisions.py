"""Decisions of a training run that depend on time, signals or monitors: rank 0 makes them for all ranks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from crossbow.cluster.fault import VARIABLE, faults_of
from crossbow.cluster.members import Left
from crossbow.cluster.ranks import LEAVE, Ranks
from crossbow.console import say


class CommonDecisions:
    """Decisions of rank 0 for all ranks, which call `at_tick`, `look_for_signals` and `decide` in the same order."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.received = 0
        """The last signal that this process has received."""
        self.interrupted = 0
        """The signal for which all ranks end training."""
        self.pauses = False
        """Whether to pause at this tick boundary."""
        self._asked = -1
        """Number of the view in which this rank has asked to leave."""
        self._wanting: set[int] = set()
        """On rank 0: the ranks of this view that have asked to leave."""
        self._leaving: tuple[int, ...] = ()
        """The ranks that leave at this tick boundary."""
        self._joins = False
        """Whether ranks join at this tick boundary."""
        self._faults = faults_of(os.environ) if ranks.connected else ()
        self._struck = -1
        """Number of the view in which a fault has happened."""

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self._ranks.several

    def receive(self, signal: int) -> None:
        """Record a signal. Called by its handler."""
        self.received = signal

    @contextmanager
    def receiving(self, signals: Sequence[signal.Signals]) -> Iterator[None]:
        """Record Ctrl-C, and the other signals that rank 0 names, instead of their default actions. A second Ctrl-C
        raises KeyboardInterrupt at once. The application's own handlers are kept."""
        handlers: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler}
        numbers = self.decide(lambda: [int(number) for number in signals])
        handlers |= {signal.Signals(number): signal.SIG_DFL for number in numbers}
        if threading.current_thread() is not threading.main_thread():
            handlers = {}
        taken = [number for number, handler in handlers.items() if signal.getsignal(number) is handler]

        def note(number: int, frame: FrameType | None) -> None:
            if self.received and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.receive(number)

        for number in taken:
            signal.signal(number, note)
        try:
            yield
        finally:
            for number in taken:
                signal.signal(number, handlers[number])

    def decide(self, decide: Callable[[], Any]) -> Any:
        """Rank 0's decision, a JSON value. Whether a rank calls this must not depend on state that differs between
        ranks."""
        return self._ranks.agree(decide)

    def regrouped(self) -> None:
        """Forget the decisions that were made with the previous ranks."""
        self.pauses, self._leaving, self._joins = False, (), False
        self._wanting.clear()

    def at_tick(self, stops: Callable[[], bool], pauses: Callable[[], bool], *, elastic: bool = False) -> bool:
        """Decide at a tick boundary whether to stop and whether to pause (`pauses`). Returns whether to stop. elastic:
        whether training can continue with other ranks; otherwise it ends if a rank is asked to leave."""

        def decide() -> tuple[bool, bool, int, list[int], bool]:
            self.interrupted = self._signal()
            if self._wanting and not (elastic and len(self._wanting) < self._ranks.size):
                self.interrupted = self.interrupted or signal.SIGTERM
            stop = stops()
            leaving = [] if stop else sorted(self._wanting)
            joins = not stop and elastic and self._ranks.join_wanted and not self._join_is_due_later()
            return stop, pauses() or bool(leaving) or joins, self.interrupted, leaving, joins

        self._tell_first()
        stop, self.pauses, self.interrupted, leaving, self._joins = self.decide(decide)
        self._leaving = tuple(leaving)
        return bool(stop)

    def look_for_signals(self) -> int:
        """The signal for which all ranks end training, including one that has just arrived; 0 if there is none."""
        self._tell_first()
        self.interrupted = self.decide(self._signal)
        return self.interrupted

    def fault_is_due(self, tick: int, ticks: int) -> bool:
        """Whether a fault changes the view at this tick, for which all ranks pause: the first tick, at or after that of
        the fault, at which they can pause. ticks: number of ticks between two at which ranks can pause."""
        view = self._ranks.view.number
        return view < len(self._faults) and view != self._struck and 0 <= tick - self._faults[view].tick < ticks

    def strike(self, tick: int, ticks: int, *, elastic: bool) -> None:
        """Apply the due fault, if any, to this rank. All ranks have paused."""
        if self.fault_is_due(tick, ticks):
            self._struck = self._ranks.view.number
            fault = self._faults[self._struck]
            if fault.kind != "join" and fault.rank >= self._ranks.size:
                if self._ranks.is_first:
                    say(f"{VARIABLE}: there is no rank {fault.rank} at tick {tick}")
            elif fault.kind == "leave" and elastic and self._ranks.several:
                self._leaving = (fault.rank,)
            elif fault.kind == "join":
                self._joins = elastic and self._ranks.admits
                if not self._joins and self._ranks.is_first:
                    say(f"{VARIABLE}: no rank can join at tick {tick}")
            elif fault.kind == "leave":
                self.received = signal.SIGTERM if self._ranks.is_first else 0
            elif fault.rank == self._ranks.rank:
                fault.strike()

    def change_view(self) -> None:
        """If ranks leave or join at this tick boundary, at which all have paused, raise Left on those that leave, after
        every rank has the results of all, and ViewChangedError on the others."""
        if self._leaving or self._joins:
            self._ranks.gather(None)
            if self._ranks.rank in self._leaving:
                raise Left
            if self._joins:
                self._ranks.admit()
            self._ranks.await_view()

    def _join_is_due_later(self) -> bool:
        """Whether a later fault lets a rank join. The rank then joins no earlier, unless training waits for it."""
        return self._ranks.view.enough and any(
            fault.kind == "join" for fault in self._faults[self._ranks.view.number :]
        )

    def _signal(self) -> int:
        for rank, request in self._ranks.requests():
            if request == LEAVE:
                self._wanting.add(rank)
            else:
                self.received = request
        return self.interrupted or self.received

    def _tell_first(self) -> None:
        """Tell rank 0 of a signal that this rank has received."""
        ranks = self._ranks
        if ranks.asked_to_leave and self._asked != ranks.view.number:
            self._asked = ranks.view.number
            if ranks.is_first:
                self._wanting.add(ranks.rank)
            else:
                ranks.ask_to_leave()
        if self.received and not self._ranks.is_first:
            self._ranks.ask_to_stop(self.received)
            self.received = 0
