"""Coefficients in the host's memory, which kernels read in every call."""

from __future__ import annotations

import numpy as np

from crossbow.types import Array


class HostNumbers:
    """The coefficients of a learner. Only its own thread writes them, before a task, because the scheduler may be
    several ticks ahead of the learner."""

    def __init__(self, length: int) -> None:
        self.array: Array = np.zeros(length)
        self._set: Array | None = None

    def set(self, coefficients: Array) -> None:
        """Set the coefficients for the following calls. The caller must not change the arrays afterwards."""
        if coefficients is not self._set:
            self.array[:] = coefficients
            self._set = coefficients
