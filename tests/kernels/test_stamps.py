"""The times of a task list's calls."""

from __future__ import annotations

import time

import numpy as np
import pytest

from crossbow.clock import now
from crossbow.kernels.native import NativeError
from crossbow.kernels.stamps import Stamps
from crossbow.kernels.task_list import TaskList
from tests.kernels.native_calls import adding, python_adding


@pytest.mark.parametrize("kinds", ["nnn", "npn", "ppn", "p", "n", ""])
def test_every_call_is_timed_in_every_run(kinds: str) -> None:
    cell, stamps = np.zeros(1, np.int64), Stamps(len(kinds))
    makers = {"n": adding, "p": python_adding}
    timed = TaskList([makers[kind](cell, i + 1) for i, kind in enumerate(kinds)], list(kinds), stamps)
    for _ in range(2):
        cell[0], before = 0, now()
        timed.run()
        times = stamps.times().tolist()
        assert cell[0] == int("".join(str(i + 1) for i in range(len(kinds))) or "0")
        assert len(times) == len(kinds) + 1
        inside = [before, *times, now()]
        assert inside == sorted(inside)


def test_a_call_lasts_as_long_as_it_takes() -> None:
    cell, stamps = np.zeros(1, np.int64), Stamps(3)
    TaskList([adding(cell, 1), lambda: time.sleep(0.02), adding(cell, 2)], ["a", "b", "c"], stamps).run()
    durations = np.diff(stamps.times())
    assert durations[1] >= 20_000_000
    assert np.argmax(durations) == 1


def test_a_failure_is_that_of_the_same_call() -> None:
    cell = np.zeros(1, np.int64)
    timed = TaskList([adding(cell, 1), adding(cell, 2, status=5), adding(cell, 3)], ["a", "b", "c"], Stamps(3))
    with pytest.raises(NativeError, match="status 5"):
        timed.run()
    assert timed.failed == "b"
    assert cell[0] == 12


def test_times_are_a_copy() -> None:
    stamps = Stamps(0)
    stamps.begin()
    first = stamps.times()
    stamps.begin()
    assert first[0] <= stamps.times()[0]
    assert first is not stamps.times()
