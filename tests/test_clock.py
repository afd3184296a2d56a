"""The clock of Python and compiled code."""

from __future__ import annotations

import time

from crossbow.clock import clock_gettime, now


def test_the_clock_counts_nanoseconds() -> None:
    before, begin = now(), time.perf_counter()
    time.sleep(0.01)
    passed, seconds = now() - before, time.perf_counter() - begin
    assert 0.01 <= passed * 1e-9 <= 2 * seconds


def test_the_function_is_found_once() -> None:
    assert clock_gettime() == clock_gettime()
