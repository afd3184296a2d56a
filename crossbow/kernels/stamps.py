"""The times of a task list's calls."""

from __future__ import annotations

import numpy as np

from crossbow.clock import clock_gettime, now
from crossbow.types import Array, address

CLOCK, TIMESPEC, STAMPS, FIRST_STAMP = 0, 1, 3, 4
"""Positions in the memory of `Stamps`: the address of `clock_gettime`, the two words that it writes, the number of
times, and the times."""


class Stamps:
    """The times at which the calls of a task list ended, in nanoseconds: first the beginning of the first call."""

    def __init__(self, calls: int) -> None:
        self._memory = np.zeros(FIRST_STAMP + 1 + calls, np.int64)
        self._memory[CLOCK] = clock_gettime()
        self.address = address(self._memory)

    def begin(self) -> None:
        """Discard all times, and record the present one."""
        self._memory[STAMPS] = 0
        self.add()

    def add(self) -> None:
        """Record the present time."""
        count = self._memory[STAMPS]
        self._memory[FIRST_STAMP + count] = now()
        self._memory[STAMPS] = count + 1

    def times(self) -> Array:
        """A copy of the times since the beginning."""
        times: Array = self._memory[FIRST_STAMP : FIRST_STAMP + self._memory[STAMPS]].copy()
        return times
