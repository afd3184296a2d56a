"""Streams of the processor: worker threads, each with a share of the cores; and how tasks on them wait for others."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

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

    `submit` returns at once; work must not raise (whoever submits it catches). `call` waits for a result. The thread
    ends when the stream is closed, or when nothing refers to it any more.
    """

    def __init__(self, name: str, cores: Sequence[int], threads: int, set_threads: Callable[[int], None]) -> None:
        """`set_threads` tells the kernel library, on the worker thread, how many threads it has.

        Raises what goes wrong in the thread's beginning.
        """
        self.name = name
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        begun: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # The thread refers to the queue only, so that a stream which nobody holds, and the context that has it, can be
        # collected. Waiting for the thread's end is not possible then: the collection may run on that very thread.
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
        """Do `work` after everything submitted before."""
        self._queue.put(work)

    def call(self, work: Callable[[], T]) -> T:
        """Do `work` after everything submitted before; return its result or raise its exception."""
        call = _Call(work)
        self.submit(call.run)
        return call.result()

    def wait(self, timeout: float) -> bool:
        """Wait until everything submitted before is done; whether it was within `timeout` seconds."""
        done = threading.Event()
        self.submit(done.set)
        return done.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """End the thread after the work submitted so far; whether it ended within `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()


@dataclass(frozen=True)
class Signals:
    """Makes calls that keep the order of a tick without a lock."""

    library: KernelLibrary
    flags: Flags

    @classmethod
    def of(cls, assembly: Assembly) -> Signals:
        """The signals of a run."""
        return cls(assembly.arithmetic.library, assembly.flags)

    def wait(self, flags: Array, state: Array) -> list[BoundStep]:
        """Wait until all of these flags have reached the task's tick."""
        buffers = {"flags": flags, "abort": self.flags.abort, "state": state}
        return [BoundStep("wait", call) for call in self.library.prepare(Wait()).bind(buffers)]

    def signal(self, flags: Array, index: int, state: Array) -> list[BoundStep]:
        """Set one of these flags to the task's tick."""
        buffers = {"flag": flags[index : index + 1], "state": state}
        return [BoundStep("signal", call) for call in self.library.prepare(Signal()).bind(buffers)]


class _Call(Generic[T]):
    """Work whose result another thread waits for."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> None:
        """On the stream's thread."""
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        self._done.set()

    def result(self) -> T:
        """What the work returned, or raised."""
        self._done.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback refers to this
        return self._results.pop()


def _work(
    submitted: queue.SimpleQueue[Work | None],
    cores: tuple[int, ...],
    threads: int,
    set_threads: Callable[[int], None],
    begun: Callable[[BaseException | None], None],
) -> None:
    """What a stream's thread does."""
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)  # 0 is this thread; the teams it starts inherit it
        set_threads(threads)
    except BaseException as error:
        begun(error)
        return
    np.seterr(over="ignore", invalid="ignore", divide="ignore")  # what diverges is reported as an error of its own
    begun(None)
    while (work := submitted.get()) is not None:
        work()
        del work  # or the last task would stay alive while the thread waits for the next
