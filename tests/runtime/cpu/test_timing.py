"""Tasks whose calls are timed."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.native import NativeCall
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.cpu.timing import TimedTask
from crossbow.runtime.cpu.work import BoundTask
from tests.kernels.native_calls import adding


def test_a_timed_task_makes_the_same_calls() -> None:
    cell, loss = np.zeros(1, np.int64), np.array([0.5])
    released: list[int] = []

    def python() -> None:
        cell[0] = cell[0] * 10 + 2

    bound = BoundTask(
        TaskList([adding(cell, 1), python, adding(cell, 3)], ["a", "b", "c"]), loss, None, released.append
    )
    timed = TimedTask(bound)
    timed.task.calls.run()
    assert cell[0] == 123
    assert timed.calls == [("a", "add 1"), ("b", "function"), ("c", "add 3")]
    assert (np.diff(timed.times()) >= 0).all()
    assert len(timed.times()) == 4
    assert (timed.task.loss, timed.task.release) == (loss, bound.release)
    assert all(isinstance(call, NativeCall) for call in bound.calls.calls[::2])
