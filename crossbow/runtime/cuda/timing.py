"""Times of the calls on a GPU's stream, for timelines: events between the calls."""

from __future__ import annotations

import numpy as np

from crossbow.clock import now
from crossbow.compile import BoundStep
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import on
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.types import Array


class TimedEvent:
    """A point in a stream's work whose time is measured."""

    def __init__(self, stream: CudaStream) -> None:
        """Record the event after all work submitted to the stream so far."""
        runtime = api().runtime
        with on(stream.place):
            self.pointer = int(runtime.eventCreateWithFlags(runtime.eventDefault))
            runtime.eventRecord(self.pointer, stream.place.pointer)

    def wait(self) -> None:
        """Wait for the event."""
        api().runtime.eventSynchronize(self.pointer)

    def close(self) -> None:
        """Destroy the event."""
        api().runtime.eventDestroy(self.pointer)


class StreamClock:
    """Converts the times of a stream's events to the host's clock."""

    def __init__(self, stream: CudaStream) -> None:
        """Wait for the stream, so that both clocks are read at the same time."""
        stream.call(lambda: None)
        self._origin = TimedEvent(stream)
        self._origin.wait()
        self._time = now()

    def time(self, event: TimedEvent) -> int:
        """The time of an event that has happened, in nanoseconds of `crossbow.clock.now`."""
        milliseconds: float = api().runtime.eventElapsedTime(self._origin.pointer, event.pointer)
        return self._time + round(milliseconds * 1e6)


class Marks:
    """Events between the calls of one task."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self._events = [TimedEvent(stream)]
        self.calls: list[tuple[str, str]] = []
        """Operator and name of each call so far."""

    def mark(self, operator: str, call: str = "event") -> None:
        """Record that a call, or a wait for events, was submitted."""
        self.calls.append((operator, call))
        self._events.append(TimedEvent(self._stream))

    def step(self, step: BoundStep) -> None:
        """Record that the call of this step was submitted."""
        self.mark(step.operator, getattr(step.call, "name", type(step.call).__name__))

    def times(self, clock: StreamClock) -> Array:
        """Wait for all calls. Returns the time at which the first one began, and the times at which they ended. The
        events are destroyed."""
        self._events[-1].wait()  # no thread has waited for the last event of a synchroniser
        times = np.array([clock.time(event) for event in self._events], np.int64)
        for event in self._events:
            event.close()
        self._events = []
        return np.maximum.accumulate(times)  # events have a resolution of half a microsecond
