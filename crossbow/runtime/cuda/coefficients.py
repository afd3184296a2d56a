"""Coefficients in a GPU's memory, copied in stream order whenever they change."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current
from crossbow.types import Array, address

STAGES = 64
"""Maximum number of pending copies: that of a learner's pending tasks."""


class DeviceNumbers:
    """The coefficients of updates in a GPU's memory. This GPU must be the current one at its creation."""

    def __init__(self, length: int, stages: int = STAGES) -> None:
        """stages: maximum number of pending copies."""
        self.array: Array = api().zeros(8 * max(length, 1)).view(np.float64)[:length]
        self._stages: Array = api().pinned(8 * stages * max(length, 1)).view(np.float64).reshape(stages, -1)
        self._stage = 0
        self._set: Array | None = None
        self._sent = np.full(length, np.nan)
        """The coefficients that are on the GPU, or are being copied."""

    def set(self, coefficients: Array) -> None:
        """Set the coefficients for work that is submitted to the current stream from now on. The caller must not change
        the array afterwards."""
        if coefficients is not self._set:
            self.send(coefficients)
            self._set = coefficients

    def send(self, coefficients: Array) -> None:
        """Like `set`, but for an array that may have been changed. Equal coefficients are not copied again."""
        if np.array_equal(coefficients, self._sent):
            return
        stage = self._stages[self._stage]
        self._stage = (self._stage + 1) % len(self._stages)
        stage[: coefficients.size] = coefficients
        runtime = api().runtime
        kind = runtime.memcpyHostToDevice
        nbytes = coefficients.nbytes
        runtime.memcpyAsync(address(self.array), address(stage), nbytes, kind, current().pointer)
        self._sent = coefficients
