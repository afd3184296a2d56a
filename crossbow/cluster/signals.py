"""Signals to a launcher."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from crossbow.cluster.failure import TERMINATED
from crossbow.interruption import ENDING, Handler


@contextmanager
def handled(handler: Handler, numbers: Iterable[int] = ENDING) -> Iterator[None]:
    """Handle signals with a function, if this is the main thread: other threads must not install handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM end the process with an exception, so that the processes that it has started are ended, too."""
    with handled(_raise, [signal.SIGTERM]):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Let signals take effect only at the end: Ray's native code crashes if an exception interrupts its start. A second
    signal ends the process at once."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)

    try:
        with handled(note):
            yield
    finally:
        if received:
            _raise(received[0], None)


def _raise(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(TERMINATED)
