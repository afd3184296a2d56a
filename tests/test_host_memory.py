"""Memory of the host."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import host_memory
from crossbow.host_memory import HUGE_PAGE, aligned_zeros, physical_memory
from crossbow.types import address


@given(st.integers(0, 3000), st.sampled_from([1, 8, 16, 64, 4096]))
def test_aligned_memory_is_aligned_and_zero(nbytes: int, alignment: int) -> None:
    memory = aligned_zeros(nbytes, alignment)
    assert (memory.dtype, memory.shape) == (np.uint8, (nbytes,))
    assert nbytes == 0 or address(memory) % alignment == 0  # NumPy does not move the address of an empty slice
    assert not memory.any()
    memory[...] = 255  # all of it can be written


def test_large_memory_is_asked_for_in_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a whole page on, from the page's beginning; a refusal does not matter."""
    asked = []

    def refuse(start: int, nbytes: int, advice: int) -> int:
        asked.append((start, nbytes))
        return -1

    monkeypatch.setattr(host_memory, "_madvise", lambda: refuse)
    assert len(aligned_zeros(HUGE_PAGE - 1)) == HUGE_PAGE - 1
    assert asked == []
    memory = aligned_zeros(HUGE_PAGE + 1)
    assert asked == [(address(memory), 2 * HUGE_PAGE)]
    assert address(memory) % HUGE_PAGE == 0
    assert len(memory) == HUGE_PAGE + 1


def test_physical_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2**28 < physical_memory() <= sys.maxsize
    monkeypatch.delattr(os, "sysconf")
    assert physical_memory() == sys.maxsize
