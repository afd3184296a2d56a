"""Learners that wait for each other's flags, and that stop waiting."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from crossbow.kernels import why_not_compiled
from crossbow.kernels.interface import State
from crossbow.kernels.requests import Signal, Wait
from crossbow.kernels.task_list import TaskList
from crossbow.types import Aborted
from tests.support import SECONDS

if why_not_compiled() is not None:
    pytest.skip(f"no compiled kernels: {why_not_compiled()}", allow_module_level=True)

from crossbow.kernels.cpu.passes.flags import signal, wait


def flags(count: int) -> dict[str, np.ndarray]:
    """As the runtime lays them out: every flag on a cache line of its own."""
    memory = np.zeros((count, 8), np.int64)
    return {"flags": memory[:, 0], "abort": np.zeros(1, np.int64), "state": np.zeros(State.SIZE, np.int64)}


def test_two_learners_wait_for_each_other() -> None:
    rounds, seen = 200, []
    shared = flags(2)
    counts = np.zeros(2, np.int64)

    def learner(number: int) -> None:
        state = np.zeros(State.SIZE, np.int64)
        flag = shared["flags"][number : number + 1]
        (signal_,) = signal(Signal()).bind({"state": state, "flag": flag})
        (wait_,) = wait(Wait()).bind({**shared, "state": state})
        tasks = TaskList([signal_, wait_], ["signal", "wait"])
        for tick in range(1, rounds + 1):
            counts[number] = state[State.TICK] = tick
            tasks.run()
            seen.append(counts.min() >= tick)
            tasks.run()

    threads = [threading.Thread(target=learner, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(seen) == 2 * rounds
    assert all(seen)


@pytest.mark.parametrize("delay", [0.0, 0.0005, 0.05])
def test_a_wait_ends_when_aborted(delay: float) -> None:
    shared = flags(3)
    shared["state"][State.TICK] = 1
    (wait_,) = wait(Wait()).bind(shared)
    tasks = TaskList([wait_], ["the average"])
    raised: list[BaseException] = []

    def run() -> None:
        try:
            tasks.run()
        except Aborted as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(delay)
    shared["abort"][0] = 1
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert len(raised) == 1
    assert tasks.failed == "the average"


def test_a_wait_that_is_over_does_not_look_at_abort() -> None:
    shared = flags(2)
    shared["abort"][0] = 1
    (wait_,) = wait(Wait()).bind(shared)
    TaskList([wait_], ["wait"]).run()


def test_python_goes_on_while_a_list_waits() -> None:
    shared = flags(1)
    shared["state"][State.TICK] = 1
    (wait_,) = wait(Wait()).bind(shared)
    thread = threading.Thread(target=TaskList([wait_], ["wait"]).run)
    thread.start()
    total = sum(range(100_000))
    assert thread.is_alive()
    shared["flags"][0] = 1
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert total == 4999950000
