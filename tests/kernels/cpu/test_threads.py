"""The number of threads of a learner, with OpenMP and without."""

from __future__ import annotations

import ctypes

import pytest

from crossbow.kernels.cpu import threads
from crossbow.kernels.cpu.onednn import shared_library
from tests.kernels.cpu import REASON


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize("count", [1, 3])
def test_it_is_the_teams_of_this_thread(count: int) -> None:
    before = shared_library.omp_get_max_threads()
    shared_library.omp_set_num_threads(count)
    try:
        assert threads.max_threads() == count
        function = ctypes.CFUNCTYPE(ctypes.c_int)(threads.openmp_function("omp_get_max_threads"))
        assert function() == count  # one OpenMP for the passes and for oneDNN
    finally:
        shared_library.omp_set_num_threads(before)


def test_without_onednn_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_library, "why_unusable", lambda: "it is not installed")
    monkeypatch.setattr(shared_library, "omp_get_max_threads", lambda: 5)
    assert threads.max_threads() == 1
