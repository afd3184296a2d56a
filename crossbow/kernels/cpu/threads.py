"""The threads of a learner: a team of GNU OpenMP, the copy that oneDNN uses. Without oneDNN, there is one thread."""

from __future__ import annotations

import ctypes
import functools

from crossbow.kernels.cpu.onednn import shared_library


def max_threads() -> int:
    """The team size of the calling thread."""
    return 1 if shared_library.why_unusable() is not None else shared_library.omp_get_max_threads()


class one_thread:  # noqa: N801 - used as a function
    """Context manager: reduce the team of the calling thread to one thread."""

    def __enter__(self) -> None:
        self._before = max_threads()
        if self._before != 1:
            shared_library.omp_set_num_threads(1)

    def __exit__(self, *_error: object) -> None:
        if self._before != 1:
            shared_library.omp_set_num_threads(self._before)


@functools.cache
def openmp_function(name: str) -> int:
    """The address of a function of OpenMP's runtime."""
    found = ctypes.cast(getattr(shared_library.openmp(), name), ctypes.c_void_p).value
    assert found is not None
    return found


def team_functions() -> tuple[int, int]:
    """The addresses of the functions that return and set the team size of the calling thread; 0 without oneDNN."""
    if shared_library.why_unusable() is not None:
        return 0, 0
    return openmp_function("omp_get_max_threads"), openmp_function("omp_set_num_threads")
