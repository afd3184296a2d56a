"""The runner of task lists: order, failures, waiting learners, the cache of compiled passes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossbow.kernels.interface import State
from crossbow.kernels.native import BAD_INDEX, BAD_LABEL, NativeCall, NativeError
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import Signal, Wait
from crossbow.kernels.task_list import TaskList
from crossbow.types import Aborted, address
from tests.support import SECONDS, until

compiled = pytest.importorskip("crossbow.kernels.compiled", reason="numba is not installed")
waiting = pytest.importorskip("crossbow.kernels.cpu.passes.flags", reason="numba is not installed")


@compiled.native
def add(target: int, amount: int, status: int, _3: int) -> int:
    """target[0] ← 10 · target[0] + amount; returns `status`."""
    cell = compiled_int64_at(target)
    cell[0] = cell[0] * 10 + np.int64(amount)
    return np.int32(status)


compiled_int64_at = compiled.int64_at


def adding(cell: np.ndarray, amount: int, status: int = 0) -> NativeCall:
    return NativeCall(f"add {amount}", add.address, (address(cell), amount, status), (cell,))


def python_adding(cell: np.ndarray, amount: int) -> Callable[[], None]:
    def call() -> None:
        cell[0] = cell[0] * 10 + amount

    return call


@pytest.mark.parametrize("kinds", ["nnn", "nnpnnp", "pnn", "ppp", "npn", "n", "p", ""])
def test_calls_run_in_order(kinds: str) -> None:
    cell = np.zeros(1, np.int64)
    makers = {"n": adding, "p": python_adding}
    tasks = TaskList([makers[kind](cell, i + 1) for i, kind in enumerate(kinds)], list(kinds))
    tasks.run()
    expected = int("".join(str(i + 1) for i in range(len(kinds))) or "0")
    assert cell[0] == expected
    assert tasks.failed is None
    assert tasks.native_calls == kinds.count("n")


@pytest.mark.parametrize("python_before", [0, 1])
def test_a_native_failure_names_its_operator(python_before: int) -> None:
    cell = np.zeros(1, np.int64)
    calls = [python_adding(cell, 1)] * python_before + [adding(cell, 2), adding(cell, 3, status=5), adding(cell, 4)]
    names = ["python"] * python_before + ["first", "second", "third"]
    tasks = TaskList(calls, names)
    with pytest.raises(NativeError, match=r"add 3.*status 5") as caught:
        tasks.run()
    assert caught.value.status == 5
    assert tasks.failed == "second"
    assert str(cell[0]).endswith("23")


@compiled.native
def told(target: int, _1: int, _2: int, _3: int) -> int:
    """Returns target[0]."""
    return np.int32(compiled_int64_at(target)[0])


@pytest.mark.parametrize("kinds", ["n", "np"])
def test_a_run_does_not_remember_the_failure_of_the_one_before(kinds: str) -> None:
    cell, status = np.zeros(1, np.int64), np.full(1, 5, np.int64)
    calls = {"n": NativeCall("told", told.address, (address(status),), (status,)), "p": python_adding(cell, 1)}
    tasks = TaskList([calls[kind] for kind in kinds], list(kinds))
    with pytest.raises(NativeError):
        tasks.run()
    assert tasks.failed == "n"
    status[0] = 0
    tasks.run()
    assert tasks.failed is None


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (BAD_LABEL, "a label is not one of the classes (from 0 to their number − 1)"),
        (BAD_INDEX, "an index is not a whole number from 0 to the number of rows − 1"),
        (7, "it returned status 7, expected 0"),
    ],
)
def test_a_status_in_words(status: int, meaning: str) -> None:
    with pytest.raises(NativeError) as caught:
        adding(np.zeros(1, np.int64), 3, status=status)()
    assert str(caught.value) == f"the native call add 3 failed: {meaning}"


@pytest.mark.parametrize("alone", [True, False])
def test_a_native_call_may_explain_its_failure(alone: bool) -> None:
    cell, asked = np.zeros(1, np.int64), []

    def explain() -> None:
        asked.append(int(cell[0]))
        if cell[0] > 3:
            raise LookupError(f"expected at most 3. Received: {cell[0]}")

    failing = [replace(adding(cell, amount, status=5), explain=explain) for amount in (3, 4)]
    run = [call if alone else TaskList([call], ["a"]).run for call in failing]
    replace(adding(cell, 0), explain=explain)()  # nobody is asked where nothing fails
    with pytest.raises(NativeError, match=r"add 3.*status 5"):  # it has nothing to say
        run[0]()
    with pytest.raises(LookupError, match="Received: 34"):
        run[1]()
    assert asked == [3, 34]


def test_a_python_exception_passes_untouched() -> None:
    error = ZeroDivisionError("mine")

    def fail() -> None:
        raise error

    cell = np.zeros(1, np.int64)
    tasks = TaskList([adding(cell, 1), fail, adding(cell, 2)], ["a", "b", "c"])
    with pytest.raises(ZeroDivisionError) as caught:
        tasks.run()
    assert caught.value is error
    assert tasks.failed == "b"
    assert cell[0] == 1


def test_a_call_alone_is_the_same() -> None:
    cell = np.zeros(1, np.int64)
    adding(cell, 7)()
    assert cell[0] == 7
    with pytest.raises(NativeError, match="status 3"):
        adding(cell, 7, status=3)()


def test_names_and_arguments_are_counted() -> None:
    with pytest.raises(ValueError, match="one name for each of the 0 calls"):
        TaskList([], ["a"])
    with pytest.raises(ValueError, match="at most 4 arguments"):
        NativeCall("f", 1, (1, 2, 3, 4, 5))


def test_what_addresses_point_into_lives_as_long_as_the_list() -> None:
    class Token(np.ndarray):
        pass

    cell = np.zeros(1, np.int64).view(Token)
    gone = weakref.ref(cell)
    tasks = TaskList([adding(cell, 1)], ["a"])
    del cell
    gc.collect()
    assert gone() is not None
    tasks.run()
    del tasks
    gc.collect()
    assert gone() is None


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
        (signal,) = waiting.signal(Signal()).bind({"state": state, "flag": flag})
        (wait,) = waiting.wait(Wait()).bind({**shared, "state": state})
        tasks = TaskList([signal, wait], ["signal", "wait"])
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
    (wait,) = waiting.wait(Wait()).bind(shared)
    tasks = TaskList([wait], ["the average"])
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
    (wait,) = waiting.wait(Wait()).bind(shared)
    TaskList([wait], ["wait"]).run()


def test_python_goes_on_while_a_list_waits() -> None:
    shared = flags(1)
    shared["state"][State.TICK] = 1
    (wait,) = waiting.wait(Wait()).bind(shared)
    thread = threading.Thread(target=TaskList([wait], ["wait"]).run)
    thread.start()
    total = sum(range(100_000))
    assert thread.is_alive()
    shared["flags"][0] = 1
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert total == 4999950000


SIGNAL_ONCE = """
import time
import numpy as np
from crossbow.kernels import compiled
from crossbow.kernels.task_list import TaskList
from crossbow.kernels.cpu.passes import flags
from crossbow.kernels.requests import Signal
state, flag = np.full(8, 3), np.zeros(1, np.int64)
begin = time.perf_counter()
TaskList(flags.signal(Signal()).bind({"state": state, "flag": flag}), ["signal"]).run()
print(flag[0], flags.signal_flag.loaded_from_disk, compiled.run_table.loaded_from_disk)
"""


def run_python(program: str, **environment: str) -> str:
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(
        [sys.executable, "-c", program], env=variables, check=True, capture_output=True, text=True
    ).stdout


def test_the_second_process_finds_the_compiled_passes(tmp_path: Path) -> None:
    assert run_python(SIGNAL_ONCE, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["3", "False", "False"]
    assert run_python(SIGNAL_ONCE, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["3", "True", "True"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            RuntimeError("cannot cache function 'add': no locator available for file 'here'"),
            "no directory for them can be written",
        ),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_passes_compile_where_nothing_can_be_kept(error: Exception, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is said once, before the first of them is compiled."""
    import numba

    real, done = numba.cfunc, []

    def without_cache(signature: object, cache: bool = False) -> object:
        if cache:
            raise error
        done.append("compiled")
        return real(signature)

    def warn(message: str, *arguments: object, **options: object) -> None:
        done.append(message)

    monkeypatch.setattr(numba, "cfunc", without_cache)
    monkeypatch.setattr("warnings.warn", warn)
    compiled._warn_of_cache.cache_clear()
    cell = np.zeros(1, np.int64)
    again, other = compiled.NativeFunction(add._function), compiled.NativeFunction(add._function)
    assert other.address
    NativeCall("add", again.address, (address(cell), 4, 0))()
    warning, *rest = done
    assert warning.startswith(f"compiled kernels cannot be kept on disk ({why}): every process compiles them again")
    assert warning.endswith("Set NUMBA_CACHE_DIR to a directory that can be written")
    assert rest == ["compiled", "compiled"]
    assert cell[0] == 4
    assert not again.loaded_from_disk


def test_without_numba_lists_of_python_calls_run() -> None:
    program = """
import sys
sys.modules["numba"] = None
from crossbow.kernels.task_list import TaskList
from crossbow.kernels import why_not_onednn
done = []
tasks = TaskList([lambda: done.append(1), lambda: done.append(2)], ["a", "b"])
tasks.run()
print(done, why_not_onednn())
"""
    assert run_python(program).startswith("[1, 2] ")
    assert "numba" in run_python(program, CROSSBOW_WITHOUT_ONEDNN="")


def test_a_change_of_any_kernels_file_is_another_checksum(tmp_path: Path) -> None:
    """A pass contains constants of other files: compiled before one changed, it must not be found again."""
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "a.py").write_text("ONE = 1")
    (below / "b.py").write_text("TWO = 2")
    before = compiled._checksum(tmp_path)
    (below / "b.py").write_text("TWO = 3")
    assert compiled._checksum(tmp_path) != before
    (below / "b.py").write_text("TWO = 2")
    assert compiled._checksum(tmp_path) == before
    assert compiled._checksum(Path(compiled.__file__).parent) == compiled._SALT


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("library", ["compiled", "reference"])
def test_times_of_waiting_and_averaging(library: str, averages: bool) -> None:
    """The state has both times, and what the learner does now."""
    prepare = Reference().prepare if library == "reference" else None
    shared = flags(1)
    state = shared["state"]
    state[State.TICK] = 1
    request, buffers = Wait(averages=averages), {"state": state, "flag": np.zeros(1, np.int64)}
    (wait,) = (waiting.wait(request) if prepare is None else prepare(request)).bind(shared)
    (signal,) = (waiting.signal(Signal()) if prepare is None else prepare(Signal())).bind(buffers)
    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: state[State.SINCE] > 0)
    time.sleep(0.02)
    shared["flags"][0] = 1
    thread.join(SECONDS)
    assert 0.02e9 <= state[State.WAITED] < SECONDS * 1e9
    assert (state[State.SINCE] < 0) == averages
    time.sleep(0.01)
    signal()
    assert state[State.SINCE] == 0
    assert (state[State.AVERAGED] >= 0.01e9) == averages
    before = state[State.WAITED]
    wait()  # there is nothing to wait for
    assert state[State.WAITED] - before < 0.01e9
