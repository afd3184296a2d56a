"""Messages and arrays that other ranks have sent to this one."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import Any, NamedTuple

import numpy as np

from crossbow.types import Array


class Envelope(NamedTuple):
    """A message or an array on its way."""

    era: int
    """Number of the sender's era."""
    source: int
    """Rank of the sender in that era."""
    channel: int
    array: bool
    """Whether it is received in place, with `Mailbox.post`."""
    content: Any
    """Bytes, or an array of bytes."""
    process: int = -1
    """Number with which the sender's process was started; -1 for the launcher."""


class Receipt:
    """Implements `Pending` for an array that is received."""

    def __init__(self, array: Array) -> None:
        self._array, self._done = array, False

    def fill(self, content: Any) -> None:
        """Copy the received content to the array."""
        self._array.view(np.uint8)[...] = content
        self._done = True

    def done(self) -> bool:
        return self._done


class Mailbox:
    """Keeps letters until they are received. Letters of an older era are dropped, and letters of a newer era wait until
    it begins. Any thread may call the methods."""

    def __init__(self) -> None:
        self._lock, self._era = threading.Lock(), 0
        self._early: list[Envelope] = []
        self._clear()

    def _clear(self) -> None:
        self._messages: dict[int, deque[tuple[int, bytes]]] = defaultdict(deque)
        self._arrays: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self._receipts: dict[tuple[int, int], deque[Receipt]] = defaultdict(deque)

    def begin(self, era: int) -> None:
        """Begin an era, and forget all letters of earlier eras."""
        with self._lock:
            self._era = era
            self._clear()
            early, self._early = self._early, []
            for letter in early:
                self._sort(letter)

    def deliver(self, letter: Envelope) -> bool:
        """Accept a letter. Returns False for a letter of an older era, which is rejected."""
        with self._lock:
            return self._sort(letter)

    def _sort(self, letter: Envelope) -> bool:
        key = letter.source, letter.channel
        if letter.era > self._era:
            self._early.append(letter)
        elif letter.era < self._era:
            return False
        elif not letter.array:
            self._messages[letter.channel].append((letter.source, letter.content))
        elif self._receipts[key]:
            self._receipts[key].popleft().fill(letter.content)
        else:
            self._arrays[key].append(letter.content)
        return True

    def take(self, channel: int, rank: int | None) -> tuple[int, bytes] | None:
        """The next message from a rank, or from any; see `Transport.receive`."""
        with self._lock:
            waiting = self._messages[channel]
            for number, message in enumerate(waiting):
                if rank is None or message[0] == rank:
                    del waiting[number]
                    return message
            return None

    def post(self, array: Array, rank: int, channel: int) -> Receipt:
        """Receive the next array from a rank in place; see `Transport.receive_array`."""
        receipt, key = Receipt(array), (rank, channel)
        with self._lock:
            if self._arrays[key]:
                receipt.fill(self._arrays[key].popleft())
            else:
                self._receipts[key].append(receipt)
        return receipt
