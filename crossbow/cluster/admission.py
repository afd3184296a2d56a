"""Ranks that join during training.

A rank that joins runs the same program as the others, from its beginning. It takes the results of their earlier common
steps from the journal of rank 0: decisions, the results of tests, and the results of finished training calls, which it
skips. Where the values of all ranks are gathered, it appends its own value, so that it is compared with the others as
they were with each other.

When it reaches the training call that they are in, all of them pause at a tick, and the launcher adds it to the view.
If they have ended that call by then, it continues with the newer entries of the journal.
"""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import NamedTuple

from crossbow.cluster.members import Rank
from crossbow.types import CrossbowError

ANOTHER_PROGRAM = "a rank that joins must run the same program as the other ranks"
NO_MORE = "the other ranks have come to a place where none can join"


class CommonStep(StrEnum):
    """A step that all ranks take together."""

    AGREEMENT = "a decision of rank 0"
    GATHERING = "values of all ranks"
    WORK = "a test or a measurement"
    TRAINING = "a training call"


class CannotJoinError(CrossbowError):
    """A rank cannot join the others."""


class Entry(NamedTuple):
    """One common step of the ranks, and its result."""

    step: CommonStep
    value: bytes
    """The result of the step: a JSON value, or other bytes."""


class Journal(NamedTuple):
    """The common steps of the ranks before the current or next training call."""

    ranks: tuple[Rank, ...]
    """The ranks at the beginning of the newest training call."""
    entries: tuple[Entry, ...]


class Admission:
    """Keeps the journal and, on rank 0, answers the launcher. Every rank has one, because it may become rank 0."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[Entry] = []
        self._ranks: tuple[Rank, ...] = ()
        self._recording, self._open, self._closed = True, False, False
        self._wanted = self._paused = False

    # On the thread of the program

    def note(self, step: CommonStep, value: bytes) -> None:
        """Add to the journal, except during training."""
        with self._changed:
            if self._recording:
                self._entries.append(Entry(step, value))
                self._changed.notify_all()

    def record(self, *, on: bool) -> bool:
        """Set whether entries are recorded. Returns the previous value."""
        before, self._recording = self._recording, on and not self._closed
        return before

    def open(self, ranks: tuple[Rank, ...]) -> None:
        """Let ranks join the training call that begins."""
        with self._changed:
            self._ranks, self._open, self._recording = ranks, not self._closed, False
            self._changed.notify_all()

    def end_training(self, result: bytes) -> None:
        """Note that the training call has ended."""
        with self._changed:
            self._open, self._recording = False, not self._closed
        self.note(CommonStep.TRAINING, result)

    def close(self) -> None:
        """Let no more ranks join, permanently."""
        with self._changed:
            self._closed, self._open, self._recording = True, False, False
            self._entries.clear()
            self._changed.notify_all()

    def take_over(self, joining: Joining) -> None:
        """On a rank that has joined: continue the journal of the others."""
        with self._changed:
            self._entries = list(joining.entries)

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
            return Journal(self._ranks, tuple(self._entries)) if self._open else None

    def request(self, known: int, *, trains: bool) -> Journal | str | None:
        """Answer a rank that has reached the end of a journal with `known` entries. trains: whether it has reached a
        training call.

        Returns None as soon as all ranks have paused at a tick, so that it can join; a longer journal, if they have
        ended the call instead; or the reason why it cannot join."""
        with self._changed:
            while not self._closed:
                if len(self._entries) > known:
                    return Journal(self._ranks, tuple(self._entries))
                if self._open and not trains:
                    return f"{ANOTHER_PROGRAM}: expected {CommonStep.TRAINING}. Received: something else before it"
                if self._paused:
                    self._paused = False
                    return None
                self._wanted = self._open
                self._changed.wait()
                self._wanted = False
            return NO_MORE


class Joining:
    """The state of a rank that joins: the journal that it follows."""

    def __init__(self, journal: Journal) -> None:
        self._changed = threading.Condition()
        self.entries = journal.entries
        self._next = 0
        self._waits_for: CommonStep | None = None
        """The step that the program waits for at the end of the journal."""
        self._ended, self._refusal = False, ""

    # On the thread of the program

    def has(self, step: CommonStep) -> bool:
        """Whether the journal has another entry. At its end, the program waits for more entries, or to become a rank in
        a training call. Raises CannotJoinError if it cannot join, for example because its program differs."""
        with self._changed:
            if self._refusal:
                raise CannotJoinError(self._refusal)
            if self._next < len(self.entries):
                return True
            self._waits_for = step
            self._changed.notify_all()
            return False

    def next(self, step: CommonStep) -> bytes:
        """The value of the next entry. Raises CannotJoinError if the entry is of another step."""
        expected, value = self.entries[self._next]
        if step is not expected:
            raise CannotJoinError(f"{ANOTHER_PROGRAM}: expected {expected}. Received: {step}")
        self._next += 1
        return value

    # On other threads, for the launcher

    def go_on(self, journal: Journal | str) -> None:
        """Continue with a longer journal, or end for this reason."""
        with self._changed:
            self._waits_for = None
            if isinstance(journal, str):
                self._refusal = journal
            else:
                self.entries = journal.entries

    def end(self) -> None:
        """Note that the program has ended."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def await_arrival(self) -> tuple[int, bool] | None:
        """Wait until the program has reached the end of the journal. Returns its length, and whether the program is in
        a training call; None if it has ended instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._waits_for is not None or self._ended)
            return None if self._waits_for is None else (len(self.entries), self._waits_for is CommonStep.TRAINING)
