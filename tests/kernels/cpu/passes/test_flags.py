"""Learners that wait for each other's flags, and that stop waiting."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

from crossbow.kernels import why_not_compiled
from crossbow.kernels.interface import State
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import Signal, Wait
from crossbow.kernels.task_list import TaskList
from crossbow.types import Aborted, CrossbowError
from tests.support import SECONDS, until

if why_not_compiled() is not None:
    pytest.skip(f"no compiled kernels: {why_not_compiled()}", allow_module_level=True)

from crossbow.kernels.cpu.passes.flags import (
    SLEEP_MICROSECONDS,
    YIELDS,
    signal,
    wait,
    wait_for_flags,
)


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


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("library", ["compiled", "reference"])
def test_times_of_waiting_and_averaging(library: str, averages: bool) -> None:
    """The state has both times, and what the learner does now."""
    prepare = Reference().prepare if library == "reference" else None
    shared = flags(1)
    shared["flags"] = shared["flags"][:1]
    state = shared["state"]
    state[State.TICK] = 1
    request, buffers = Wait(averages=averages), {"state": state, "flag": np.zeros(1, np.int64)}
    (wait_,) = (wait(request) if prepare is None else prepare(request)).bind(shared)
    (signal_,) = (signal(Signal()) if prepare is None else prepare(Signal())).bind(buffers)
    thread = threading.Thread(target=wait_)
    thread.start()
    until(lambda: state[State.SINCE] > 0)
    time.sleep(0.02)
    shared["flags"][0] = 1
    thread.join(SECONDS)
    assert 0.02e9 <= state[State.WAITED] < SECONDS * 1e9
    assert (state[State.SINCE] < 0) == averages
    time.sleep(0.01)
    signal_()
    assert state[State.SINCE] == 0
    assert (state[State.AVERAGED] >= 0.01e9) == averages
    before = state[State.WAITED]
    wait_()  # there is nothing to wait for
    assert state[State.WAITED] - before < 0.01e9


def test_a_wait_yields_its_core_before_it_sleeps() -> None:
    """The functions stand for the system's, and record their calls. The second flag is set during the third sleep."""
    raised, calls = np.array([4, 3]), list[str]()
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 4)

    def sched_yield(_0: int, _1: int, _2: int, _3: int) -> int:
        calls.append("yield")
        return 0

    def usleep(microseconds: int, _1: int, _2: int, _3: int) -> int:
        calls.append(f"sleep {microseconds}")
        raised[1] = 4 if len(calls) >= YIELDS + 3 else 3
        return 0

    functions = function(sched_yield), function(usleep)
    addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in functions]
    state = np.zeros(State.SIZE, np.int64)
    state[State.TICK] = 4
    wait_for_flags.call(
        "wait",
        flags=raised,
        count=raised.size,
        stride=raised.strides[0],
        abort=np.zeros(1, np.int64),
        state=state,
        averages=0,
        microseconds=0,
        sched_yield=addresses[0],
        usleep=addresses[1],
        clock_gettime=0,
        timespec=np.zeros(2, np.int64),
    )()
    assert calls == ["yield"] * YIELDS + [f"sleep {SLEEP_MICROSECONDS}"] * 3


@pytest.mark.parametrize("library", ["compiled", "reference"])
def test_a_wait_may_have_a_limit(library: str) -> None:
    shared = flags(3)
    shared["flags"][0] = shared["state"][State.TICK] = 1
    request = Wait(seconds=0.05)
    (wait_,) = (wait(request) if library == "compiled" else Reference().prepare(request)).bind(shared)
    began = time.monotonic()
    with pytest.raises(CrossbowError, match=r"^waited 0\.05 s for other learners: 1, 2$"):
        wait_()
    assert time.monotonic() - began >= 0.05
    shared["flags"][1:] = 1
    wait_()


def test_a_long_wait_keeps_no_core_busy() -> None:
    shared = flags(1)
    shared["state"][State.TICK] = 1
    (wait_,) = wait(Wait()).bind(shared)
    tasks, used, done = TaskList([wait_], ["the average"]), [], threading.Event()

    def run() -> None:
        began, waited = time.thread_time(), time.perf_counter()
        tasks.run()
        used.append((time.thread_time() - began) / (time.perf_counter() - waited))
        done.set()

    threading.Thread(target=run, daemon=True).start()
    time.sleep(0.4)
    (signal_,) = signal(Signal()).bind({"state": shared["state"], "flag": shared["flags"]})
    TaskList([signal_], ["signal"]).run()
    assert done.wait(SECONDS)
    assert used[0] < 0.05
