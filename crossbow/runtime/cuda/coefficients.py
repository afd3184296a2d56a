"""Coefficients in a GPU's memory: copied there, in the stream's order, whenever they have changed."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current
from crossbow.types import Array, address

STAGES = 64
"""Changes that may be on their way to the GPU at a time: as many as tasks of a learner."""


class DeviceNumbers:
    """The coefficients of some updates, as kernels of a GPU read them. Made with that GPU as the current one."""

    def __init__(self, length: int, stages: int = STAGES) -> None:
        """stages: copies that may be on their way to the GPU at a time."""
        self.array: Array = api().zeros(8 * max(length, 1)).view(np.float64)[:length]
        self._stages: Array = api().pinned(8 * stages * max(length, 1)).view(np.float64).reshape(stages, -1)
        self._stage = 0
        self._set: Array | None = None
        self._sent = np.full(length, np.nan)
        """The coefficients that are on the GPU, or on their way there."""

    def set(self, coefficients: Array) -> None:
        """Let what is submitted to the current stream from now on see these coefficients. An array is not written again
        once it was given."""
        if coefficients is not self._set:
            self.send(coefficients)
            self._set = coefficients

    def send(self, coefficients: Array) -> None:
        """As `set`, whatever was given before."""
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
