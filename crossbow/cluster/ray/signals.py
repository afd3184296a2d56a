"""Signals to a launcher before its ranks run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from crossbow.cluster.failure import TERMINATED
from crossbow.interruption import ENDING

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the process with an exception, so that what was started is ended, too."""
    with _handlers({signal.SIGTERM: _raise}):
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

    with _handlers(dict.fromkeys(ENDING, note)):
        yield
    if received:
        _raise(received[0], None)


def _raise(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(TERMINATED)


@contextmanager
def _handlers(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Replace handlers of signals, if this is the main thread, which alone may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
