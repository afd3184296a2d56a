"""The monotonic clock that both Python and compiled code read."""

from __future__ import annotations

import ctypes
import functools
import sys
import time

MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 0)


@functools.cache
def clock_gettime() -> int:
    """Address of the system's function `clock_gettime`; 0 on systems without it."""
    if sys.platform == "win32":
        return 0
    return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0


def now() -> int:
    """The time of the clock that compiled code reads, in nanoseconds since an arbitrary moment."""
    return time.clock_gettime_ns(MONOTONIC) if MONOTONIC else time.monotonic_ns()
