"""The numbers of updates in a GPU's memory: copied there, in the stream's order, whenever the schedule moves on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.runtime.coefficients import Coefficients, PacedUpdate
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.solver import Pace
from crossbow.types import Array, address

STAGES = 64
"""Changes that may be on their way to the GPU at a time: as many as tasks of a learner."""


class DeviceCoefficients:
    """Coefficients as kernels of a GPU read them. Made with that GPU as the current one."""

    def __init__(self, host: Coefficients) -> None:
        self._host = host
        self._numbers = [numbers for paced in self._paced for numbers in paced.numbers.values()]
        length = sum(numbers.size for numbers in self._numbers)
        self._memory = api().zeros(8 * max(length, 1)).view(np.float64)
        self._stages: Array = api().pinned(8 * STAGES * max(length, 1)).view(np.float64).reshape(STAGES, -1)
        self._stage = 0
        self._sent: Pace | None = None
        place = 0
        made: list[PacedUpdate] = []
        for paced in self._paced:
            numbers = {}
            for multiplier, values in paced.numbers.items():
                numbers[multiplier] = self._memory[place : place + values.size]
                place += values.size
            made.append(replace(paced, numbers=numbers))
        self.step, self.local, self.merge, self.reply = made
        """The updates of `Coefficients`, with numbers on the GPU."""

    @property
    def _paced(self) -> tuple[PacedUpdate, ...]:
        return self._host.step, self._host.local, self._host.merge, self._host.reply

    def set(self, pace: Pace, stream: CudaStream) -> None:
        """Let what is submitted to the stream from now on see the numbers at this pace."""
        if pace == self._sent:
            return
        self._host.set(pace)
        stage = self._stages[self._stage]
        self._stage = (self._stage + 1) % STAGES
        place = 0
        for numbers in self._numbers:
            stage[place : place + numbers.size] = numbers
            place += numbers.size
        runtime = api().runtime
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(address(self._memory), address(stage), stage.nbytes, kind, stream.place.pointer)
        self._sent = pace
