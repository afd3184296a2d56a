"""The numbers of updates in a GPU's memory: copied there, in the stream's order, whenever they have changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current
from crossbow.runtime.coefficients import Coefficients, PacedUpdate
from crossbow.runtime.learner import Numbers
from crossbow.solver import Pace
from crossbow.types import Array, address

STAGES = 64
"""Changes that may be on their way to the GPU at a time: as many as tasks of a learner."""


class DeviceNumbers:
    """The numbers of some updates, as kernels of a GPU read them. Made with that GPU as the current one."""

    def __init__(self, host: Numbers, updates: Sequence[PacedUpdate], stages: int) -> None:
        """host: what sets the numbers of the updates in the host's memory; stages: copies that may be on their way to
        the GPU at a time."""
        self._host = host
        self._numbers = [numbers for paced in updates for numbers in _arrays(paced)]
        length = sum(numbers.size for numbers in self._numbers)
        self._memory = api().zeros(8 * max(length, 1)).view(np.float64)
        self._stages: Array = api().pinned(8 * stages * max(length, 1)).view(np.float64).reshape(stages, -1)
        self._stage = 0
        self._pace: Pace | None = None
        self._sent = np.full(length, np.nan)
        """The numbers that are on the GPU, or on their way there."""
        sizes = [numbers.size for numbers in self._numbers]
        ends = itertools.accumulate(sizes)
        pieces = iter([self._memory[end - size : end] for size, end in zip(sizes, ends, strict=True)])
        self.updates = [_with_numbers(paced, pieces) for paced in updates]
        """With numbers on the GPU."""

    def set(self, pace: Pace) -> None:
        """Let what is submitted to the current stream from now on see the numbers at this pace, on which alone they
        depend."""
        if pace != self._pace:
            self.send(pace)
            self._pace = pace

    def send(self, pace: Pace) -> None:
        """Let what is submitted to the current stream from now on see the numbers of now, at this pace."""
        self._host.set(pace)
        numbers = np.concatenate(self._numbers)
        if np.array_equal(numbers, self._sent):
            return
        stage = self._stages[self._stage]
        self._stage = (self._stage + 1) % len(self._stages)
        stage[:] = numbers
        runtime = api().runtime
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(address(self._memory), address(stage), stage.nbytes, kind, current().pointer)
        self._sent = numbers


def _arrays(paced: PacedUpdate) -> list[Array]:
    """An update's numbers, and behind them those of what takes its place for variables that are kept."""
    return [*paced.numbers.values(), *(_arrays(paced.alone) if paced.alone is not None else ())]


def _with_numbers(paced: PacedUpdate, arrays: Iterator[Array]) -> PacedUpdate:
    """The update with the next of these arrays for its numbers, in the order of `_arrays`."""
    numbers = {multiplier: next(arrays) for multiplier in paced.numbers}
    return replace(paced, numbers=numbers, alone=paced.alone and _with_numbers(paced.alone, arrays))


class DeviceCoefficients(DeviceNumbers):
    """Coefficients as kernels of a GPU read them. Made with that GPU as the current one."""

    def __init__(self, host: Coefficients) -> None:
        super().__init__(host, (host.step, host.local, host.merge, host.reply), STAGES)
        self.step, self.local, self.merge, self.reply = self.updates
        """The updates of `Coefficients`, with numbers on the GPU."""
