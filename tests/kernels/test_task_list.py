"""Task lists: the order of calls, failures, and lifetimes of buffers."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from crossbow.kernels.native import ABORTED, NativeCall, NativeError
from crossbow.kernels.task_list import TaskList
from crossbow.types import Aborted, address
from tests.kernels.native_calls import adding, compiled, compiled_int64_at, python_adding


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


def test_names_are_counted() -> None:
    with pytest.raises(ValueError, match="one name for each of the 0 calls"):
        TaskList([], ["a"])


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


def test_the_table_of_a_native_list() -> None:
    """Calls 1 and 2 may run beside call 0, and call 4 beside call 3."""
    cell = np.zeros(1, np.int64)
    calls = [adding(cell, number) for number in range(1, 6)]
    calls = [replace(call, together=index in (1, 2, 4)) for index, call in enumerate(calls)]
    table = TaskList(calls, list("abcde")).table
    assert table is not None
    assert (table.calls, table.together.tolist(), table.has_together) == (5, [3, 1, 1, 2, 1], True)
    alone = TaskList([adding(cell, 1)], ["a"]).table
    assert alone is not None
    assert (alone.together.tolist(), alone.has_together) == ([1], False)
    assert TaskList([adding(cell, 1), python_adding(cell, 2)], ["a", "b"]).table is None
    assert TaskList([], []).table is None


def test_a_failure_of_another_thread_names_its_operator() -> None:
    cell = np.zeros(1, np.int64)
    tasks = TaskList([adding(cell, 1), adding(cell, 2)], ["first", "second"])
    with pytest.raises(NativeError, match=r"add 2.*status 7"):
        tasks.fail(1, 7)
    assert tasks.failed == "second"
    with pytest.raises(Aborted):
        tasks.fail(0, ABORTED)
    assert tasks.failed == "first"
