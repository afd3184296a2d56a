"""The end of a tick on GPUs: merge what the learners send into z, then let every learner step.

On every device a stream of its own, beside the learners'::

    wait ready (the device's learners) ► sum ► all-reduce between devices ► merge ► (merged)
    learner:   wait merged ► step

SMA's merge needs the weights from before the synchronising step, so it runs beside that task's forward and backward
pass; a rule that sends gradients merges behind them, and one that sends new weights behind the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from crossbow.kernels.cuda.launch import on
from crossbow.runtime.cuda.coefficients import DeviceCoefficients
from crossbow.runtime.cuda.collective import NcclCollective
from crossbow.runtime.cuda.graph import Work
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.stream import CudaStream, Event
from crossbow.runtime.learner import Completed, Failed, Report
from crossbow.runtime.tick import Flags
from crossbow.solver import Pace
from crossbow.types import Array


@dataclass(frozen=True)
class DeviceTick:
    """What a tick's end is on one device."""

    stream: CudaStream
    learners: Sequence[CudaLearner]
    merged: Event
    sum: Mapping[int, Work]
    """By the tick's parity; with several devices only."""
    merge: Mapping[int, Work]
    coefficients: DeviceCoefficients
    means: Sequence[Array]
    """Vectors that are added up between devices."""


class CudaSynchroniser:
    """Ends ticks. Everything is submitted from the engine's thread, and nothing waits on the host."""

    def __init__(
        self,
        number: int,
        devices: Sequence[DeviceTick],
        collective: NcclCollective | None,
        flags: Flags,
        submitting: threading.RLock,
    ) -> None:
        self.number, self.devices, self._collective, self._flags = number, devices, collective, flags
        self._submitting = submitting

    def submit(
        self,
        key: tuple[str, int],
        *,
        task: int,
        tick: int,
        slot: int,
        examples: int,
        pace: Pace,
        release: Callable[[int], None],
        report: Report,
    ) -> None:
        """Submit the tick's end, behind its tasks. What goes wrong is reported, not raised."""
        with self._submitting:
            self._submit(key[1], task, tick, pace, report)

    def _submit(self, parity: int, task: int, tick: int, pace: Pace, report: Report) -> None:
        if self._flags.abort[0]:
            report(Failed(task, self.number, "wait", None))
            return
        work: Work | None = None
        try:
            for device in self.devices:
                with on(device.stream.place):
                    for learner in device.learners:
                        device.stream.wait_for(learner.ready)
                    device.coefficients.set(pace)
                    if device.sum:
                        work = device.sum[parity]
                        work.run()
            if self._collective is not None:
                self._all_reduce(self._collective)
            for device in self.devices:
                with on(device.stream.place):
                    work = device.merge[parity]
                    work.run()
                    device.merged.record(device.stream)
        except Exception as error:
            self._flags.abort[0] = 1
            report(Failed(task, self.number, (work.failed if work else None) or "average", error))
            return
        for device in self.devices:
            for learner in device.learners:
                learner.step(parity, device.merged)
        self._flags.merged[:] = tick
        report(Completed(task, 0.0, None, 0, self.number))

    def _all_reduce(self, collective: NcclCollective) -> None:
        for vectors in zip(*(device.means for device in self.devices), strict=True):
            collective.all_reduce(vectors)

    def close(self) -> None:
        """Give graphs and ranks back."""
        if self._collective is not None:
            self._collective.close()
        for device in self.devices:
            for works in (device.sum, device.merge):
                for work in works.values():
                    work.close()
