"""Flags that order a run's tasks without a lock."""

from __future__ import annotations

import numpy as np

from crossbow.host_memory import Zeros, aligned_zeros
from crossbow.types import Array

NUMBER_NBYTES = 8
"""Bytes of a flag, or of a squared norm."""


class Flags:
    """Flags of one run. Each holds the last tick for which an action is done. A failure sets `abort`, which ends every
    wait of this process."""

    def __init__(self, learners: int, parties: int, zeros: Zeros = aligned_zeros, own: slice = slice(None)) -> None:
        """parties: number of writers of parts of z: the learners, or one synchroniser. zeros: allocates memory. own:
        the range of this process's flags, if others share the memory."""

        def new(count: int) -> Array:
            flags = zeros(count * NUMBER_NBYTES).view(np.int64)
            flags[own] = -1
            return flags

        self._own = own
        self.ready = new(learners)
        """Last tick for which learner i's contribution is ready. It does not change until the tick is merged."""
        self.contributed = new(learners)
        """Last tick for which learner i has added up its slice of its device's contributions (with a synchroniser)."""
        self.measured = new(learners)
        """Last tick for which learner i has squared its slice of the mean gradient (rules that send gradients and clip
        them)."""
        self.squares = zeros(learners * NUMBER_NBYTES).view(np.float64)
        """The squared norm that learner i has measured."""
        self.merged = new(parties)
        """Last tick for which writer p has written its part of the next z."""
        self.abort = np.zeros(1, np.int64)

    def reset(self, tick: int) -> None:
        """Mark everything before `tick` as done by this process."""
        for flags in (self.ready, self.contributed, self.measured, self.merged):
            flags[self._own] = tick - 1
        self.abort[:] = 0

    def raise_abort(self) -> None:
        """End every wait. No task begins after this call."""
        self.abort[:] = 1

    @property
    def aborted(self) -> bool:
        return bool(self.abort[0])

    @property
    def whole_ticks(self) -> int:
        """Number of ticks for which all parts of z are written."""
        return int(self.merged.min()) + 1
