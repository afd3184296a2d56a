"""A sum between devices that fails, is late, or gets a wrong size: how training ends, and that it can go on."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, CrossbowError, ExecutionContext, NonFiniteLossError, TaskError
from crossbow.runtime import building, recovery, scheduler
from crossbow.testing import Failure, FakeCollective, Stall, WrongSize
from tests.support import context, same_weights, within
from tests.test_faults import (
    RULES,
    SECONDS,
    TASKS,
    BrokenError,
    assert_tested,
    assert_usable,
    fails,
)

DEVICES = "cpu:0/2,cpu:1/2"


def spoiled(fault: Any, **options: Any) -> tuple[ExecutionContext, FakeCollective]:
    """A context of two learners on each of two devices, with a fault between them."""
    collective = FakeCollective(2, inject=fault)
    return context(devices=DEVICES, collective=collective, **options), collective


def weights_after(tasks: int, **options: Any) -> Any:
    """Those of as many tasks that nothing disturbs."""
    with context(devices=DEVICES, sum_order="tree", **options) as running:
        if tasks:
            running.train(tasks, TASKS)
        return running.variables


# Failures and wrong sizes


def assert_all_reduce(error: TaskError, call: int, running: ExecutionContext) -> None:
    """It names the sum, and the base model is that of the tick before."""
    assert error.operator == "all-reduce"
    assert error.task == call * running.engine.clock.tasks_per_tick
    assert f"task {error.task} failed in operator 'all-reduce' between the devices" in str(error)
    assert running.engine.tick == call


@pytest.mark.slow
@RULES
@pytest.mark.parametrize("call", [0, 3])
def test_a_collective_that_fails(call: int, rule: Any) -> None:
    broken = BrokenError("the network is gone")
    running, collective = spoiled(Failure(broken, at=call), rule=rule)
    with running:
        error = fails(lambda: running.train(100), TaskError)
        assert error.__cause__ is broken
        place = f"task {error.task} failed in operator 'all-reduce' between the devices"
        assert str(error) == f"{place}: BrokenError: the network is gone"
        assert "all_reduce" in [frame.name for frame in traceback.extract_tb(broken.__traceback__)]
        assert_all_reduce(error, call, running)
        assert same_weights(running.variables, weights_after(running.engine.tasks, rule=rule))
        assert_usable(running)
        size = running.engine.program.model.elements
        assert set(collective.calls) == {(size, size)}


@pytest.mark.slow
@RULES
@pytest.mark.parametrize("device", [0, 1])
def test_a_vector_of_a_wrong_size(device: int, rule: Any) -> None:
    """Nothing is summed, and the error says what was expected and what came."""
    running, _ = spoiled(WrongSize(at=2, device=device), rule=rule)
    with running:
        size = running.engine.program.model.elements
        error = fails(lambda: running.train(100), TaskError)
        expected = f"all_reduce: expected 2 vectors of one size and type. Received: 2 of [(({size - 1},), 'float32'), "
        assert expected + f"(({size},), 'float32')]" in str(error)
        assert isinstance(error.__cause__, ValueError)
        assert_all_reduce(error, 2, running)
        assert same_weights(running.variables, weights_after(running.engine.tasks, rule=rule))
        assert_usable(running)


def test_a_collective_of_other_devices() -> None:
    with context(devices=DEVICES, learners=1, collective=FakeCollective(3)) as running:
        error = fails(lambda: running.train(100), TaskError)
        assert "all_reduce: expected 3 vectors of one size and type. Received: 2 of" in str(error)
        assert_all_reduce(error, 0, running)
        assert_tested(running)


def test_a_collective_that_damages_its_vectors() -> None:
    """NaN from elsewhere: the next task of somebody tells."""

    def damage(number: int, vectors: Any) -> None:
        if number == 4:
            vectors[1][0] = np.nan

    running, _ = spoiled(damage)
    with running:
        fails(lambda: running.train(100), NonFiniteLossError)


# Stalls


@contextmanager
def training(running: ExecutionContext, tasks: int) -> Iterator[list[BaseException | None]]:
    """Trains beside the block, and waits for the end of it: what it ended with."""
    ended: list[BaseException | None] = []

    def train() -> None:
        try:
            running.train(tasks, TASKS)
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=train, name="training")
    thread.start()
    try:
        yield ended
    finally:
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.mark.slow
@RULES
def test_a_stall_that_ends_changes_nothing(rule: Any) -> None:
    stall = Stall(at=3)
    running, collective = spoiled(stall, rule=rule)
    tasks = 8 * 4 * rule.tau
    with running:
        with training(running, tasks) as ended:
            assert stall.begun.wait(SECONDS)
            time.sleep(0.1)
            assert len(collective.calls) == 4  # nobody has gone past it
            assert not ended
            stall.over.set()
        assert ended == [None]
        assert same_weights(running.variables, weights_after(tasks, rule=rule))


@pytest.mark.slow
def test_closing_while_a_sum_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training ends at once, the synchroniser's thread as soon as its sum comes back."""
    monkeypatch.setattr(building, "CLOSE_SECONDS", 0.1)
    stall = Stall(at=3)
    running, _ = spoiled(stall)
    with training(running, 10**6) as ended:
        try:
            assert stall.begun.wait(SECONDS)
            within(SECONDS, running.close)
            deadline = time.monotonic() + SECONDS
            while not ended and time.monotonic() < deadline:
                time.sleep(0.01)
            assert isinstance(ended[0], CrossbowError)
            assert "closed while training" in str(ended[0])
        finally:
            stall.over.set()


@contextmanager
def pressing(begun: threading.Event, then: Callable[[], None] = lambda: None, *, often: bool) -> Iterator[None]:
    """Presses Ctrl-C when the stall has begun. often: again and again, until the block is left."""
    left = threading.Event()

    def press() -> None:
        begun.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        while often and not left.is_set():  # two that come while the main thread is about to wait count as one
            os.kill(os.getpid(), signal.SIGINT)
            left.wait(1.5)
        then()

    presser = threading.Thread(target=press)
    presser.start()
    try:
        yield
    finally:
        left.set()
        presser.join()


@pytest.mark.slow
@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_ctrl_c_once_waits_for_a_sum_that_is_late(rule: Any) -> None:
    """The tick is finished, if its sum comes: nothing is lost."""
    stall = Stall(at=3)
    running, _ = spoiled(stall, rule=rule)
    with running:
        with pressing(stall.begun, stall.over.set, often=False), pytest.raises(KeyboardInterrupt):
            running.train(10**6, TASKS)
        done = running.engine.tasks
        assert done >= 4 * 4
        assert same_weights(running.variables, weights_after(done, rule=rule))
        running.train(20, TASKS)
        assert same_weights(running.variables, weights_after(done + 20, rule=rule))


@pytest.mark.slow
@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_ctrl_c_twice_does_not_wait_for_a_sum_that_is_late(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context can be used when it is there: as it was before the tick, or behind it, where all had contributed."""
    monkeypatch.setattr(recovery, "DRAIN_SECONDS", 0.1)
    monkeypatch.setattr(scheduler, "SECONDS_TO_FINISH", 2 * SECONDS)
    stall = Stall(at=3)
    running, _ = spoiled(stall, rule=rule)
    with running:
        start = time.monotonic()
        with pressing(stall.begun, often=True), pytest.raises(KeyboardInterrupt):
            running.train(10**6, TASKS)
        assert time.monotonic() - start < SECONDS
        assert "still in a task" in str(fails(lambda: running.train(1), CrossbowError))
        stall.over.set()
        running.engine.check_usable()
        assert running.engine.tick in (3, 4)
        assert same_weights(running.variables, weights_after(running.engine.tasks, rule=rule))
        assert_usable(running)
