"""Flags that order a run's tasks without a lock."""

from __future__ import annotations

import numpy as np


class Flags:
    """Flags of one run. Each holds the last tick for which an action is done. A failure raises `abort`, which ends
    every wait."""

    def __init__(self, learners: int, parties: int) -> None:
        """parties: number of writers of parts of z: each learner, or one synchroniser for all."""
        self.ready = np.full(learners, -1, np.int64)
        """Learner i's contribution to this tick is ready, and does not change until the tick is merged."""
        self.contributed = np.full(learners, -1, np.int64)
        """Learner i has added up its slice of its device's contributions (several devices or ranks only)."""
        self.measured = np.full(learners, -1, np.int64)
        """Learner i has squared its slice of the mean gradient (rules that send gradients and clip them)."""
        self.squares = np.zeros(learners)
        """The squared norm that learner i has measured."""
        self.merged = np.full(parties, -1, np.int64)
        """Party p has written its part of the next z."""
        self.abort = np.zeros(1, np.int64)

    def reset(self, tick: int) -> None:
        """Mark everything before `tick` as done."""
        for flags in (self.ready, self.contributed, self.measured, self.merged):
            flags[:] = tick - 1
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
