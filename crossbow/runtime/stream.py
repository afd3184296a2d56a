"""A stream: work done in order, beside other streams. On the CPU it is a worker thread with a share of the cores."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

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
        answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def answering() -> None:
            try:
                answer.put((work(), None))
            except BaseException as error:
                answer.put((None, error))

        self.submit(answering)
        result, error = answer.get()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

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
