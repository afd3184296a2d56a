"""Ranks that join during training.

A rank that joins runs the same program as the others. What these have decided together before training, it takes from
the journal of rank 0, and it appends its own value where the values of all ranks are gathered. So it is compared with
the others as they were with each other. When it reaches the training call that they are in, all of them pause at a
tick, and the launcher adds it to the view.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from crossbow.cluster.members import Rank
from crossbow.types import CrossbowError

EXPECTED = "expected the same program as on the other ranks. Received: one"


class Journal(NamedTuple):
    """What the ranks decided before training."""

    ranks: tuple[Rank, ...]
    """Those that decided."""
    values: tuple[bytes, ...]
    """The decisions, in order: JSON values, or other bytes."""


class Admission:
    """Keeps the journal and, on rank 0, answers the launcher. Every rank that has been there from the beginning has
    one: it may become rank 0. Ranks can join the first training call of a program, unless it tests before."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: list[bytes] = []
        self._ranks: tuple[Rank, ...] = ()
        self._recording, self._open = True, False
        self._wanted = self._paused = False

    # On the thread of the program

    def note(self, value: bytes) -> None:
        """Add a decision to the journal. Those during and after training are not kept."""
        if self._recording:
            self._values.append(value)

    def record(self, *, on: bool) -> bool:
        """Set whether decisions are kept, until training begins. Returns whether they were."""
        before, self._recording = self._recording, on
        return before

    def open(self, ranks: tuple[Rank, ...]) -> None:
        """Let ranks join the training call that begins, if it is the first one."""
        with self._changed:
            self._ranks, self._open, self._recording = ranks, self._recording, False

    def close(self) -> None:
        """Let no more ranks join."""
        with self._changed:
            self._open = self._recording = False
            self._changed.notify_all()

    @property
    def wanted(self) -> bool:
        """Whether the launcher waits for a pause."""
        return self._wanted

    def pause(self) -> None:
        """Tell the launcher that all ranks have paused at a tick, and wait for a new view."""
        with self._changed:
            self._paused = True
            self._changed.notify_all()

    # On other threads, for the launcher

    def journal(self) -> Journal | None:
        """The journal; None if no rank can join now."""
        with self._changed:
            return Journal(self._ranks, tuple(self._values)) if self._open else None

    def request(self) -> bool:
        """Wait until all ranks have paused at a tick. Returns False if training has ended instead."""
        with self._changed:
            self._wanted = True
            self._changed.wait_for(lambda: self._paused or not self._open)
            paused, self._paused, self._wanted = self._paused, False, False
            return paused


class Joining:
    """The part of a rank that joins: the decisions that it takes over."""

    def __init__(self, journal: Journal) -> None:
        self._values = list(reversed(journal.values))
        self._changed = threading.Event()
        self._arrived = False

    def next(self) -> bytes:
        """The next decision. Raises CrossbowError if there is none, because the program is another one."""
        if not self._values:
            raise CrossbowError(f"{EXPECTED} that needs more decisions before training")
        return self._values.pop()

    def arrive(self) -> None:
        """Note that the program has reached its training call. Raises CrossbowError if the others decided more."""
        if self._values:
            raise CrossbowError(f"{EXPECTED} that needs fewer decisions before training")
        self._arrived = True
        self._changed.set()

    def end(self) -> None:
        """Note that the program has ended."""
        self._changed.set()

    def await_arrival(self) -> bool:
        """Wait for `arrive`. Returns False if the program has ended instead."""
        self._changed.wait()
        return self._arrived
