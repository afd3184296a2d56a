"""Memory of the host: allocation of aligned memory, in huge pages where the system has them, and its size and use."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from crossbow.types import Array, address

HUGE_PAGE = 2**21
"""Size of a huge page on x86-64, in bytes."""
_MADV_HUGEPAGE = 14
Zeros = Callable[[int], Array]
"""Function that allocates zeroed bytes of a device's memory, or of memory that processes share."""


def aligned_zeros(nbytes: int, alignment: int = 64) -> Array:
    """Zeroed memory (uint8, 1-D) whose first byte is aligned to a multiple of `alignment`.

    From 2 MiB on, huge pages are requested if Linux offers them on request. With these, the processor translates fewer
    addresses, and prefetches further.
    """
    room = nbytes
    if nbytes >= HUGE_PAGE:
        room, alignment = -(-nbytes // HUGE_PAGE) * HUGE_PAGE, max(alignment, HUGE_PAGE)
    memory = np.zeros(room + alignment, dtype=np.uint8)
    start = -address(memory) % alignment
    if nbytes >= HUGE_PAGE and (madvise := _madvise()) is not None:
        madvise(address(memory) + start, room, _MADV_HUGEPAGE)  # only a hint, so failure is ignored
    return memory[start : start + nbytes]


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    made: Callable[[int, int, int], int] = function
    return made


def physical_memory() -> int:
    """Size of the machine's memory in bytes; if it is unknown, a number larger than any machine's."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def resident_memory() -> int | None:
    """Memory of this process that is in RAM, in bytes; None if the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def peak_memory() -> int | None:
    """Peak resident memory of this process in bytes; None if the system does not report it."""
    if platform.system() == "Linux":
        # getrusage would include the peak of the process before it executed this program.
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024
