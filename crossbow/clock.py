"""The monotonic clock, as Python and compiled code read it."""

from __future__ import annotations

import ctypes
import functools
import sys
import time

MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 0)


@functools.cache
def clock_gettime() -> int:
    """Address of the system's function; 0 where there is none."""
    if sys.platform == "win32":
        return 0
    return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0


def now() -> int:
    """Nanoseconds of the clock that compiled code reads, since an arbitrary moment."""
    return time.clock_gettime_ns(MONOTONIC) if MONOTONIC else time.monotonic_ns()
