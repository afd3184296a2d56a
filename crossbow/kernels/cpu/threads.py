"""The threads of a learner: a team of GNU OpenMP, of the copy that oneDNN uses. Without oneDNN there is one thread."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator

from crossbow.kernels.cpu.onednn import shared_library


def max_threads() -> int:
    """The team size of the calling thread."""
    return 1 if shared_library.why_unusable() is not None else shared_library.omp_get_max_threads()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Make the team of the calling thread one thread in the block."""
    if shared_library.why_unusable() is not None:
        yield
        return
    before = shared_library.omp_get_max_threads()
    shared_library.omp_set_num_threads(1)
    try:
        yield
    finally:
        shared_library.omp_set_num_threads(before)


@functools.cache
def openmp_function(name: str) -> int:
    """The address of a function of OpenMP's runtime."""
    found = ctypes.cast(getattr(shared_library.openmp(), name), ctypes.c_void_p).value
    assert found is not None
    return found
