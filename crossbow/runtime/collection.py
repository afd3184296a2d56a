"""Pauses Python's cyclic garbage collector while large graphs are compiled and bound to buffers."""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()
_calls = 0
"""Number of calls that have paused it."""
_enabled = False
"""Whether it was enabled before the first of these."""


class PausedCollection:
    """Context manager: disables the cyclic garbage collector.

    Compiling and binding allocates many objects, and nearly all of them are kept. The collector would traverse them
    repeatedly, which takes a quarter of the time. It is a class, because the frames of a generator would appear in
    users' tracebacks.
    """

    def __enter__(self) -> None:
        global _calls, _enabled
        with _lock:
            if _calls == 0:
                _enabled = gc.isenabled()
            _calls += 1
            gc.disable()

    def __exit__(self, *error: object) -> None:
        global _calls
        with _lock:
            _calls -= 1
            if _enabled and _calls == 0:
                gc.enable()
