"""Coefficients in the host's memory, where kernels read them at every call."""

from __future__ import annotations

import numpy as np

from crossbow.types import Array


class HostNumbers:
    """The coefficients of one learner. Only its own thread writes them, before a task, so that it may run ticks behind
    the scheduler."""

    def __init__(self, length: int) -> None:
        self.array: Array = np.zeros(length)
        self._set: Array | None = None

    def set(self, coefficients: Array) -> None:
        """Let kernels see these coefficients from now on. An array is not written again once it was given."""
        if coefficients is not self._set:
            self.array[:] = coefficients
            self._set = coefficients
