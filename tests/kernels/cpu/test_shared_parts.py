"""Parts that threads take in turn: every part is computed once, and late threads do no harm."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from crossbow.kernels.native import NativeCall, NativeError
from crossbow.kernels.task_list import TaskList
from crossbow.types import address
from tests.kernels.native_calls import adding, compiled
from tests.support import SECONDS, until

shared_parts = pytest.importorskip("crossbow.kernels.cpu.shared_parts", reason="numba is not installed")

SIZES = (4, 1)
"""Numbers of inputs of the programs."""
int64_at, load_acquire, store_release = compiled.int64_at, shared_parts.load_acquire, shared_parts.store_release


@compiled.native
def square_all(source: int, target: int, count: int, wrong: int) -> int:
    """target = source². Returns 7 for an input that is `wrong`."""
    x, y = int64_at(source), int64_at(target)
    for index in range(np.int64(count)):
        if x[index] == np.int64(wrong):
            return np.int32(7)
        y[index] = x[index] * x[index]
    return np.int32(0)


class Squares:
    """A worker that squares numbers."""

    def __init__(self, wrong: int = -1) -> None:
        self.programs = shared_parts.Programs(len(SIZES))
        self.lists = []
        for number, size in enumerate(SIZES):
            source, target = np.zeros(size, np.int64), np.zeros(size, np.int64)
            places, kept = (address(source), address(target)), (source, target)
            nothing = NativeCall("nothing", square_all.address, (*places, 0, wrong), kept)
            square = NativeCall("square", square_all.address, (*places, size, wrong), kept)
            tasks = TaskList([nothing, square], [f"nothing {size}", f"square {size}"])
            assert tasks.table is not None
            self.programs.set(number, tasks.table, source, target)
            self.lists.append(tasks)


def plan(count: int) -> shared_parts.JobPlan:
    """Parts of four inputs, then of one."""
    fours = [shared_parts.JobPart(first, 4, 0) for first in range(0, count - 3, 4)]
    ones = [shared_parts.JobPart(first, 1, 1) for first in range(4 * len(fours), count)]
    return shared_parts.JobPlan([*fours, *ones], 8, 8)


class Thread:
    """A thread that does the work that it is given when `proceed` says so."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.proceed = threading.Event()
        self.submitted = 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self.submitted += 1
        self.work.put(work)

    def _run(self) -> None:
        while (work := self.work.get()) is not None:
            self.proceed.wait()
            work()


@pytest.fixture
def thread() -> Iterator[Thread]:
    made = Thread()
    yield made
    made.proceed.set()
    made.work.put(None)
    made.thread.join()


def squared(count: int, own: Squares, helpers: list[shared_parts.Helper]) -> np.ndarray:
    x = np.arange(count, dtype=np.int64)
    out = np.full(count, -1, np.int64)
    assert plan(count).job(x, out).run(own.programs, helpers) is None
    np.testing.assert_array_equal(out, x * x)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 4, 5, 403])
def test_one_thread_computes_all_parts(count: int) -> None:
    squared(count, Squares(), [])


@pytest.mark.slow
def test_helpers_compute_every_part_once(thread: Thread) -> None:
    thread.proceed.set()
    own, other = Squares(), Squares()
    helper = shared_parts.Helper(other.programs, thread.submit)
    for count in (8, 403, 4, 41) * 200:
        squared(count, own, [helper])


@compiled.native
def meet(own: int, other: int, go_on: int, _3: int) -> int:
    """Tell the other thread that this one computes its part, wait for the other, and then until it may go on."""
    store_release(np.int64(own), np.int64(1))
    while load_acquire(np.int64(other)) == 0 or load_acquire(np.int64(go_on)) == 0:
        shared_parts.pause()
    return np.int32(0)


@pytest.mark.parametrize("late", ["helper", "caller"])
def test_all_parts_are_waited_for(late: str, thread: Thread) -> None:
    """Two threads with a part each, of which one takes its time."""
    thread.proceed.set()
    flags = {name: np.zeros(1, np.int64) for name in ("caller", "helper", "go on")}
    always, memory = np.ones(1, np.int64), np.zeros(1, np.int64)
    workers, lists = [], []
    for name, other in (("caller", "helper"), ("helper", "caller")):
        go_on = flags["go on"] if name == late else always
        arguments = (address(flags[name]), address(flags[other]), address(go_on), 0)
        lists.append(TaskList([NativeCall("meet", meet.address, arguments, (flags, always))], ["meet"]))
        workers.append(shared_parts.Programs(1))
        workers[-1].set(0, lists[-1].table, memory, memory)
    caller, programs = workers
    helper = shared_parts.Helper(programs, thread.submit)
    job = shared_parts.JobPlan([shared_parts.JobPart(n, 1, 0) for n in (0, 1)], 8, 8).job(np.zeros(2), np.zeros(2))
    computing = threading.Thread(target=job.run, args=(caller, [helper]), daemon=True)
    computing.start()
    until(lambda: bool(flags["caller"][0] and flags["helper"][0]))
    computing.join(0.2)
    has_waited = computing.is_alive()
    flags["go on"][0] = 1
    assert has_waited
    computing.join(SECONDS)
    assert not computing.is_alive()


def test_a_helper_that_sleeps_is_not_waited_for(thread: Thread) -> None:
    """Its job is withdrawn; when it wakes, it finds nothing to do, and then takes part again."""
    own, other = Squares(), Squares()
    helper = shared_parts.Helper(other.programs, thread.submit)
    for _ in range(3):
        squared(40, own, [helper])
    assert thread.submitted == 1, "it has been woken once and is on its way"
    thread.proceed.set()
    until(lambda: helper._memory[0] == shared_parts.AWAY)
    squared(40, own, [helper])
    assert thread.submitted == 2


def test_a_busy_helper_keeps_its_job(thread: Thread) -> None:
    helper = shared_parts.Helper(Squares().programs, thread.submit)
    helper._memory[0] = shared_parts.BUSY
    squared(40, Squares(), [helper])
    assert helper._posted is None
    assert thread.submitted == 0


@pytest.mark.parametrize("helped", [False, True])
def test_a_failure_names_part_and_call(helped: bool, thread: Thread) -> None:
    thread.proceed.set()
    own, other = Squares(wrong=21), Squares(wrong=21)
    helpers = [shared_parts.Helper(other.programs, thread.submit)] if helped else []
    for _ in range(20):
        x, out = np.arange(400), np.full(400, -1)
        failure = plan(400).job(x, out).run(own.programs, helpers)
        assert failure is not None
        assert (failure.part, failure.call, failure.status) == (5, 1, 7)
        worker = own if failure.worker is own.programs else other
        assert failure.worker is worker.programs
        with pytest.raises(NativeError, match="status 7"):
            worker.lists[0].fail(failure.call, failure.status)
        assert worker.lists[0].failed == "square 4"
        np.testing.assert_array_equal(out[:20], x[:20] ** 2)
        assert (out[24:] == -1).any(), "parts after a failure are not begun"


def test_independent_calls_of_one_part(thread: Thread) -> None:
    """The calls before and after them run in order."""
    thread.proceed.set()
    order, source, target = np.zeros(1, np.int64), np.arange(1), np.zeros(1, np.int64)
    cells = np.zeros((3, 16), np.int64)
    middle = [replace(adding(cell, 5), together=index > 0) for index, cell in enumerate(cells)]
    tasks = TaskList([adding(order, 1), *middle, adding(order, 2)], list("abcde"))
    assert tasks.table is not None
    assert tasks.table.together.tolist() == [1, 3, 1, 1, 1]
    programs = shared_parts.Programs(1)
    programs.set(0, tasks.table, source, target)
    helper = shared_parts.Helper(Squares().programs, thread.submit)
    job = shared_parts.JobPlan([shared_parts.JobPart(0, 1, 0)], 8, 8).job(source, target)
    for turn in range(1, 300):
        order[:], cells[:] = 0, 0
        assert job.again().run(programs, [helper] if turn % 3 else []) is None
        assert order[0] == 12
        assert cells[:, 0].tolist() == [5, 5, 5]


@pytest.mark.parametrize("failing", range(5))
@pytest.mark.parametrize("helped", [False, True])
def test_a_failure_in_one_part(failing: int, helped: bool, thread: Thread) -> None:
    thread.proceed.set()
    cells = np.zeros((5, 16), np.int64)
    calls = [adding(cell, 1, status=9 * (index == failing)) for index, cell in enumerate(cells)]
    calls[2] = replace(calls[2], together=True)
    tasks = TaskList(calls, list("abcde"))
    programs, source = shared_parts.Programs(1), np.zeros(1, np.int64)
    assert tasks.table is not None
    programs.set(0, tasks.table, source, source)
    helpers = [shared_parts.Helper(Squares().programs, thread.submit)] if helped else []
    job = shared_parts.JobPlan([shared_parts.JobPart(0, 1, 0)], 8, 8).job(source, source)
    for _ in range(20):
        failure = job.again().run(programs, helpers)
        assert failure == shared_parts.FailedCall(0, programs, failing, 9)
    assert cells[failing + 1 + (failing == 1 and helped) :, 0].sum() == 0
