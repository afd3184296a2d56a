"""Streams of the CPU: worker threads, each with a share of the cores, and calls that wait for other streams."""

from __future__ import annotations

import math
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from crossbow.cluster.sums import SECONDS_TO_WAIT
from crossbow.compile import BoundStep
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import Signal, Wait
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.flags import Flags
from crossbow.types import Array

T = TypeVar("T")
Work = Callable[[], None]


class CpuStream:
    """A worker thread on `cores`, whose kernels use `threads` threads.

    `submit` returns at once, and its work must not raise. `call` waits for a result. The thread ends when the stream
    is closed, or when the stream is garbage-collected.
    """

    def __init__(self, name: str, cores: Sequence[int], threads: int, set_threads: Callable[[int], None]) -> None:
        """set_threads: sets the kernel library's number of threads; called on the worker thread.

        Raises errors of the thread's start.
        """
        self.name = name
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        begun: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # The thread refers only to the queue, so that an unused stream, and its context, can be garbage-collected.
        # The collection may run on this very thread, so it must not wait for the thread's end.
        self._thread = threading.Thread(
            target=_work, args=(self._queue, tuple(cores), threads, set_threads, begun.put), name=name, daemon=True
        )
        weakref.finalize(self, self._queue.put, None).atexit = False
        try:
            self._thread.start()
            error = begun.get()
        except BaseException:  # Ctrl-C
            self._queue.put(None)
            raise
        if error is not None:
            raise error

    def submit(self, work: Work) -> None:
        """Submit work, which runs after all earlier work."""
        self._queue.put(work)

    def call(self, work: Callable[[], T]) -> T:
        """Call `work` after all earlier work. Returns its result, or raises its exception."""
        return self.begin(work)()

    def begin(self, work: Callable[[], T]) -> Callable[[], T]:
        """Submit `work` and return at once. Returns a function that waits for its result, or raises its exception."""
        call = _Call(work)
        self.submit(call.run)
        return call.result

    def wait(self, timeout: float) -> bool:
        """Wait until all submitted work is done. Returns whether it was within `timeout` seconds."""
        done = threading.Event()
        self.submit(done.set)
        return done.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """End the thread after the submitted work. Returns whether it ended within `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()


@dataclass(frozen=True)
class Signals:
    """Creates calls that keep the order of a tick without a lock."""

    library: KernelLibrary
    flags: Flags
    seconds: float = math.inf
    """Maximum duration of a wait."""

    @classmethod
    def of(cls, assembly: Assembly) -> Signals:
        """The signals of a run."""
        limit = SECONDS_TO_WAIT if assembly.setting.shared else math.inf  # another process may hang
        return cls(assembly.arithmetic.library, assembly.flags, limit)

    def wait(self, name: str, flags: Array, state: Array, *, averages: bool = False) -> list[BoundStep]:
        """Return a call that waits until all these flags have reached the task's tick. name: name of the flags.
        averages: whether an average follows, which ends with the next signal."""
        buffers = {"flags": flags, "abort": self.flags.abort, "state": state}
        return [
            BoundStep(f"wait {name}", call) for call in self.library.prepare(Wait(averages, self.seconds)).bind(buffers)
        ]

    def signal(self, name: str, flags: Array, index: int, state: Array) -> list[BoundStep]:
        """Return a call that sets one of these flags to the task's tick. name: name of the flags."""
        buffers = {"flag": flags[index : index + 1], "state": state}
        return [BoundStep(f"signal {name}", call) for call in self.library.prepare(Signal()).bind(buffers)]


class _Call(Generic[T]):
    """Work whose result another thread waits for."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> None:
        """Run the work. Called on the stream's thread."""
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        self._done.set()

    def result(self) -> T:
        """Wait for the work. Returns its result, or raises its exception."""
        self._done.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback refers to this object
        return self._results.pop()


def _work(
    submitted: queue.SimpleQueue[Work | None],
    cores: tuple[int, ...],
    threads: int,
    set_threads: Callable[[int], None],
    begun: Callable[[BaseException | None], None],
) -> None:
    """Body of a stream's thread."""
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)  # 0 is this thread; the teams that it starts inherit its cores
        set_threads(threads)
    except BaseException as error:
        begun(error)
        return
    np.seterr(over="ignore", invalid="ignore", divide="ignore")  # divergence is reported as a separate error
    begun(None)
    while (work := submitted.get()) is not None:
        work()
        del work  # otherwise the last task would stay alive while the thread waits for the next one
