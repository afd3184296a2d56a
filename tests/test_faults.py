"""Promise 7: an exception anywhere ends the run with that traceback, without a hang, and leaves a usable context."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    CrossbowError,
    Dataflow,
    Dataset,
    ExecutionContext,
    JsonLinesMonitor,
    Monitor,
    MonitorError,
    NonFiniteLossError,
    SolverConf,
    SubGraph,
    TaskError,
    TrainingUnit,
)
from crossbow.data.loader import Loader
from crossbow.data.order import TrainingOrder
from crossbow.ops import BatchNorm, EuclideanLoss, InnerProduct
from crossbow.runtime import building, recovery, scheduler
from crossbow.runtime.cpu import backend, tick
from tests.combinations import one_in, pairwise
from tests.support import (
    KERNELS,
    SECONDS,
    CheckProbe,
    Probe,
    Trap,
    blobs,
    chain,
    context,
    engine_of,
    new_calls,
    perceptron,
    raising,
    same_weights,
    training,
    until,
    within,
)

"""A failure ends a run within one second; a slow machine gets more."""
TASKS = TrainingUnit.TASKS
SEVERAL = pytest.mark.parametrize(
    ("devices", "learners"), [("cpu", 1), ("cpu", 2), ("cpu", 3), ("cpu:0/2,cpu:1/2", 1), ("cpu:0/2,cpu:1/2", 2)]
)
RULES = pytest.mark.parametrize("rule", [SMA(), SMA(tau=3, base_momentum=0.5), SSGD()], ids=str)
LIMITS = pytest.mark.parametrize("limit", [None, 0.5], ids=["", "clipped"])


class BrokenError(Exception):
    """What fails in these tests."""


def fails(work: Callable[[], Any], kind: type[BaseException]) -> Any:
    """The exception that `work` raises in time."""
    with pytest.raises(kind) as caught:
        within(SECONDS, work)
    return caught.value


def assert_usable(running: ExecutionContext, tmp_path: Path | None = None) -> None:
    """Everything can be done with it, and it starts from a base model that is whole: that of every device, w_i = z."""
    parts, now = running.engine.parts, running.engine
    now.check_usable()  # where a learner was long in its task, only now can it be started again
    z = parts.bases[0].current(now.tick).copy()
    assert np.isfinite(z).all()
    for base in parts.bases:
        assert all(np.array_equal(buffer, z) for buffer in base.buffers)
        assert base.velocity is None or not base.velocity.any()
    for member in running.engine.members:
        assert member.replica.weights is None or np.array_equal(member.replica.weights, z)
        assert member.replica.velocity is None or not member.replica.velocity.any()
    assert within(SECONDS, running.test).examples == 13
    assert within(SECONDS, lambda: running.predict(blobs().train.images)).shape == (40, 3)
    if tmp_path is not None:
        running.save(tmp_path / "model")
    tasks = now.tasks
    history = within(SECONDS, lambda: running.train(20, TASKS))
    assert history.stopped == "count"
    assert now.tasks >= tasks + 20
    assert np.isfinite(history.loss)


def assert_tested(running: ExecutionContext) -> None:
    assert within(SECONDS, running.test).examples == 13


# Operators


@one_in(2)
@pairwise
@KERNELS
@SEVERAL
@RULES
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_operator_that_fails(
    where: str, rule: Any, devices: str, learners: int, kernels: str, tmp_path: Path
) -> None:
    k = learners * (devices.count(",") + 1)
    trap = Trap(raising(BrokenError("the operator is broken")), where=where, learner=k - 1, call=7)
    network = perceptron(Probe(action=trap))
    solver = SolverConf(learning_rate=0.1, momentum=0.5)
    with context(network, rule=rule, devices=devices, learners=learners, kernels=kernels, solver=solver) as running:
        error = fails(lambda: running.train(1000), TaskError)
        # Task n goes to learner n mod k.
        assert error.task == 7 * k + k - 1
        assert error.operator == ("Probe1" if where == "forward" else "Probe1.gradient")
        assert f"task {error.task} failed in operator '{error.operator}' on learner {k - 1}" in str(error)
        assert "BrokenError: the operator is broken" in str(error)
        cause = error.__cause__
        assert isinstance(cause, BrokenError)
        functions = [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
        assert where in functions
        assert functions[-1] == "act"  # down to the line that raised
        # The tick of the task is undone, or, where all had contributed already, done.
        assert running.engine.tick in (7 // rule.tau, 7 // rule.tau + 1)
        assert_usable(running, tmp_path)


@one_in(5)
@pairwise
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("where", ["forward", "backward"])
@RULES
@LIMITS
def test_the_base_model_after_a_failure_is_that_of_its_tick(
    limit: float | None, rule: Any, where: str, devices: str
) -> None:
    """Nothing that the other learners did meanwhile, or that the broken one would have done, is in it."""
    solver = SolverConf(learning_rate=0.1, clip_gradient_norm=limit)
    for call in range(4, 10):
        trap = Trap(raising(BrokenError()), where=where, learner=0, call=call)
        with context(perceptron(Probe(action=trap)), rule=rule, devices=devices, learners=2, solver=solver) as running:
            fails(lambda: running.train(1000), TaskError)
            # In this order: where the machine was too busy for the learners to come to an end, they are waited for now.
            broken, ticks = running.variables, running.engine.tick
        assert same_weights(undisturbed(rule, devices, solver, ticks), broken)


@functools.cache
def undisturbed(rule: Any, devices: str, solver: SolverConf, ticks: int) -> dict[str, Any]:
    """The weights after so many ticks of two learners."""
    probe = Probe(action=lambda *_: None)
    with context(perceptron(probe), rule=rule, devices=devices, learners=2, solver=solver) as running:
        if ticks:
            running.train(running.engine.clock.tasks_per_tick * ticks, TASKS)
        return running.variables


@pytest.mark.slow
@LIMITS
def test_a_learner_that_comes_late_to_a_merge_that_was_given_up(limit: float | None) -> None:
    """The others have been told to stop; it has not, and merges its part. That must not be seen in the base model."""
    inside, proceed = threading.Event(), threading.Event()

    def act(where: str, learner: int, call: int) -> None:
        if (where, learner, call) == ("backward", 1, 5):
            inside.set()
            proceed.wait(2 * SECONDS)

    class Failing(Monitor):
        interval = 0.0

        def progress(self, progress: Any) -> None:
            if inside.wait(0.01 if progress.tasks < 12 else SECONDS) and not proceed.is_set():
                threading.Thread(target=late).start()
                raise BrokenError

    def late() -> None:
        until(running.engine.parts.flags.abort.any)
        time.sleep(0.2)  # learner 0 gives up, and `_recover` still waits
        proceed.set()

    new_calls()
    network = perceptron(Probe(action=act), hidden=50)
    solver = SolverConf(learning_rate=0.1, clip_gradient_norm=limit)
    options: dict[str, Any] = {"rule": SSGD(), "learners": 2, "solver": solver}
    with context(network, monitors=[Failing()], **options) as running:
        fails(lambda: running.train(1000), MonitorError)
        broken = running.variables
        assert running.engine.tick == 5
    with context(perceptron(Probe(action=lambda *_: None), hidden=50), **options) as running:
        running.train(10, TASKS)
        assert same_weights(running.variables, broken)


def test_all_learners_fail_at_once() -> None:
    def act(where: str, learner: int, call: int) -> None:
        if call == 5:
            raise BrokenError

    for _ in range(5):
        new_calls()
        with context(perceptron(Probe(action=act)), learners=4) as running:
            error = fails(lambda: running.train(100), TaskError)
            assert 20 <= error.task < 24
            new_calls()
            error = fails(lambda: running.train(100), TaskError)
            assert running.test().examples == 13


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), MemoryError("no more"), StopIteration(), KeyError(1)]
)
def test_exceptions_of_every_kind(error: BaseException) -> None:
    trap = Trap(raising(error))
    with context(perceptron(Probe(action=trap))) as running:
        raised = fails(lambda: running.train(10), TaskError)
        assert raised.__cause__ is error
        assert_usable(running)


def test_an_operator_that_returns_nonsense() -> None:
    class Wrong(Probe):
        def forward(self, xp: Any, inputs: Any, variables: Any) -> Any:
            super().forward(xp, inputs, variables)
            return inputs[0][:, 1:]

    with context(perceptron(Wrong(action=lambda *_: None))) as running:
        error = fails(lambda: running.train(10), TaskError)
        assert error.operator == "Wrong1"
        assert "Wrong.forward: expected an output of shape (4, 8). Received: (4, 7)" in str(error)


def test_one_failure_after_another() -> None:
    with context(perceptron(Probe(action=(trap := Trap(raising(BrokenError()), call=0))))) as running:
        for call in range(8):
            new_calls()
            trap.place = ("forward", 0, call)
            assert fails(lambda: running.train(100), TaskError).task >= call
        assert_usable(running)


def test_a_failure_while_the_loader_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler waits for a batch that takes its time: it must hear of the failure all the same."""
    proceed = threading.Event()

    def slow(selection: Any, images: Any, labels: Any) -> None:
        if filled.append(1) or len(filled) > 6:
            proceed.wait(2 * SECONDS)

    filled: list[int] = []
    monkeypatch.setattr(backend, "Loader", lambda e, o, s, **options: Loader(e, o, s, source=slow, **options))
    trap = Trap(raising(BrokenError()), learner=1, call=1)
    try:
        with context(perceptron(Probe(action=trap))) as running:
            assert fails(lambda: running.train(10), TaskError).task == 3
    finally:
        proceed.set()


def test_a_learner_that_is_long_in_a_task_when_another_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error does not wait for it. The context can be used when it is done."""
    monkeypatch.setattr(recovery, "DRAIN_SECONDS", 0.1)
    inside, proceed = threading.Event(), threading.Event()

    def act(where: str, learner: int, call: int) -> None:
        if (where, call) == ("forward", 3):
            if learner == 1:
                inside.set()
                proceed.wait(2 * SECONDS)
            else:
                inside.wait(SECONDS)
                raise BrokenError

    new_calls()
    with context(perceptron(Probe(action=act))) as running:
        error = fails(lambda: running.train(10), TaskError)
        assert error.task == 6
        uses: list[Callable[[], Any]] = [
            lambda: running.train(1),
            lambda: running.variables,
            lambda: running.save(tmp_path / "never"),
        ]
        for use in uses:
            assert "still in a task" in str(fails(use, CrossbowError))
        proceed.set()
        assert_usable(running)
    assert not list(tmp_path.iterdir())


# What is not a number


class NotANumber(Probe):
    """The identity, but NaN where the action raises ValueError."""

    def forward(self, xp: Any, inputs: Any, variables: Any) -> Any:
        try:
            return super().forward(xp, inputs, variables)
        except ValueError:
            return inputs[0] * np.nan


@pairwise
@KERNELS
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2, base_momentum=0.5)], ids=str)
def test_a_loss_that_is_not_a_number(rule: Any, devices: str, kernels: str, tmp_path: Path) -> None:
    broken = NotANumber(action=Trap(raising(ValueError()), learner=1, call=4))
    network = training(InnerProduct(number_of_outputs=8), broken, InnerProduct(number_of_outputs=3))
    with context(network, rule=rule, devices=devices, learners=2, kernels=kernels) as running:
        error = fails(lambda: running.train(100), NonFiniteLossError)
        task = 4 * running.engine.parts.setting.learners + 1
        assert f"the loss became nan in task {task} (learning rate 0.1)" in str(error)
        assert_usable(running, tmp_path)  # the broken replica has not got into the base model


@KERNELS
def test_a_learning_rate_that_is_too_large(kernels: str) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(40, 6)).astype(np.float32), generator.normal(size=(40, 1)).astype(np.float32)
    network = Dataflow(SubGraph(chain(InnerProduct(number_of_outputs=1), EuclideanLoss())[0]))
    solver = SolverConf(learning_rate=1e6)
    with context(network, data=Dataset((x, y), (x, y)), solver=solver, kernels=kernels) as r:
        error = fails(lambda: r.train(100), NonFiniteLossError)
        assert "the loss became" in str(error)
        assert "learning rate 1e+06" in str(error)
        r.engine.load({name: np.zeros_like(value) for name, value in r.variables.items()}, "zeros")
        assert within(SECONDS, r.test).loss == pytest.approx((y**2).mean() / 2, rel=1e-5)


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@KERNELS
def test_ssgd_steps_back_from_a_loss_that_is_not_a_number(kernels: str, devices: str) -> None:
    """Here the gradient gets into z before the loss is seen: the base model before is the last whole one."""
    broken = NotANumber(action=Trap(raising(ValueError()), learner=1, call=4))
    network = training(InnerProduct(number_of_outputs=8), broken, InnerProduct(number_of_outputs=3))
    with context(network, rule=SSGD(), kernels=kernels, devices=devices, learners=2) as running:
        fails(lambda: running.train(100), NonFiniteLossError)
        assert running.engine.tick == 4
        assert_usable(running)


def test_a_test_loss_that_is_not_a_number() -> None:
    class Nothing(CheckProbe):
        def forward(self, xp: Any, inputs: Any, variables: Any) -> Any:
            return inputs[0] * np.nan

    with context(perceptron(Nothing(action=lambda *_: None)), check_batch_size=4, learners=2) as running:
        error = fails(running.test, NonFiniteLossError)
        assert "the test's loss became nan in batch" in str(error)
        fails(running.test, NonFiniteLossError)  # and it can be asked again


# The loader and monitors. (Collectives: test_collective_faults.py)


@pairwise
@pytest.mark.parametrize("task", [0, 1, 5, 17])
@pytest.mark.parametrize(("devices", "learners"), [("cpu", 1), ("cpu", 3), ("cpu:0/2,cpu:1/2", 2)])
def test_a_loader_that_fails(task: int, devices: str, learners: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BrokenError("the picture is broken")
    wanted = np.empty(4, np.intp)
    TrainingOrder(40, 4, seed=0).indices(task, wanted)

    class Failing(Loader):
        def __init__(self, examples: Any, order: Any, slots: int, **options: Any) -> None:
            fill = examples.write

            def source(selection: Any, images: Any, labels: Any) -> None:
                if armed and np.array_equal(selection.indices, wanted):
                    raise broken
                fill(selection, images, labels)

            super().__init__(examples, order, slots, source=source, **options)

    armed = [True]
    monkeypatch.setattr(backend, "Loader", Failing)
    with context(devices=devices, learners=learners) as running:
        assert fails(lambda: running.train(10), BrokenError) is broken
        armed.clear()
        assert f"while filling the batch of task {task}" in broken.__notes__[0]
        assert "source" in [frame.name for frame in traceback.extract_tb(broken.__traceback__)]
        assert_usable(running)


@pytest.mark.parametrize("when", ["progress", "record"])
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
def test_a_monitor_that_fails(when: str, devices: str) -> None:
    broken = BrokenError("the monitor is broken")

    class Failing(Monitor):
        interval = 0.0
        heard = 0

        def hear(self) -> None:
            self.heard += 1
            if self.heard == 3:
                raise broken

    monitor = Failing()
    setattr(monitor, when, lambda news: monitor.hear())
    with context(monitors=[monitor], devices=devices, learners=2, solver=SolverConf(momentum=0.5)) as running:
        assert fails(lambda: running.train(10), MonitorError).__cause__ is broken
        if when == "progress":
            assert_usable(running)
        else:  # between two stretches nothing runs, and nothing is started again
            assert running.engine.tasks == pytest.approx(30, abs=2)
            assert running.train(1).stopped == "count"


# Testing and predicting


@KERNELS
@pytest.mark.parametrize("learners", [1, 3])
def test_a_failure_while_testing(learners: int, kernels: str) -> None:
    trap = Trap(raising(BrokenError("not today")), learner=learners - 1, call=10**9)
    network = perceptron(CheckProbe(action=trap))
    with context(network, learners=learners, kernels=kernels, check_batch_size=1) as running:
        running.train(1)
        before, tick = running.variables, running.engine.tick
        new_calls()
        trap.place = ("forward", learners - 1, 1)
        error = fails(running.test, TaskError)
        assert (error.task, error.operator) == (2 * learners - 1, "CheckProbe1")
        assert isinstance(error.__cause__, BrokenError)
        assert running.engine.tick == tick
        assert same_weights(running.variables, before)
        assert_usable(running)


def test_a_failure_while_testing_during_training() -> None:
    trap = Trap(raising(BrokenError()), call=10**9)
    with context(perceptron(CheckProbe(action=trap)), learners=1) as running:
        trap.place = ("forward", 0, 11)  # ten tasks, one batch of tests; the twelfth is the second test's
        fails(lambda: running.train_and_test(5, target_accuracy=1.0), TaskError)
        assert_usable(running)


def test_ctrl_c_while_predicting_is_not_an_error_of_the_task() -> None:
    trap = Trap(raising(KeyboardInterrupt("enough")), call=0)
    with context(perceptron(CheckProbe(action=trap))) as running:
        images = blobs().train.images
        with pytest.raises(KeyboardInterrupt, match="enough"):
            running.predict(images)
        assert running.predict(images).shape == (40, 3)
        assert_usable(running)


def test_a_failure_while_predicting() -> None:
    trap = Trap(raising(BrokenError("not today")), call=0)
    with context(perceptron(CheckProbe(action=trap))) as running:
        images = blobs().train.images
        error = fails(lambda: running.predict(images), TaskError)
        assert (error.task, error.operator) == (0, "CheckProbe1")
        expected = "task 0 failed in operator 'CheckProbe1' while predicting: BrokenError: not today"
        assert str(error) == expected
        assert isinstance(error.__cause__, BrokenError)
        assert running.predict(images).shape == (40, 3)
        assert_usable(running)


# Building


@pairwise
@pytest.mark.parametrize("broken", ["compile_graph", "Flags", "new_replica", "CpuLearner"])
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
def test_a_constructor_that_fails_leaves_no_thread(broken: str, devices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise BrokenError

    monkeypatch.setattr(tick if broken == "CpuLearner" else building, broken, fail)
    before = set(threading.enumerate())
    with pytest.raises(BrokenError):
        context(devices=devices)
    assert not [thread.name for thread in threading.enumerate() if thread not in before and thread.name != "within"]


def test_a_stream_that_cannot_begin_fails_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise BrokenError("no such core")

    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("threads are bound to cores on Linux only")
    monkeypatch.setattr(os, "sched_setaffinity", fail)
    fails(context, BrokenError)


# Closing


@pytest.mark.slow
def test_closing_while_another_thread_trains() -> None:
    for devices in ("cpu", "cpu:0/2,cpu:1/2"):
        begun = threading.Event()
        running = context(perceptron(Probe(action=lambda *_, begun=begun: begun.set())), devices=devices)
        errors: list[BaseException] = []

        def train(running: ExecutionContext = running, errors: list[BaseException] = errors) -> None:
            try:
                running.train(10**6)
            except CrossbowError as error:
                errors.append(error)

        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        assert begun.wait(SECONDS)
        running.close()
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert "closed while training" in str(errors[0])


def test_an_exception_in_the_with_statement_closes_the_context() -> None:
    before = set(threading.enumerate())

    def work() -> None:
        with context() as running:
            running.train(1)
            raise BrokenError

    with pytest.raises(BrokenError):
        work()
    assert not set(threading.enumerate()) - before


# Ctrl-C


class Interrupter(Monitor):
    """Presses Ctrl-C."""

    interval = 0.0

    def __init__(self, when: str, at: int) -> None:
        self.when, self.at, self.heard = when, at, 0

    def progress(self, progress: Any) -> None:
        self.press("progress")

    def record(self, record: Any) -> None:
        self.press("record")

    def press(self, when: str) -> None:
        if when == self.when:
            self.heard += 1
            if self.heard == self.at:
                signal.raise_signal(signal.SIGINT)


@one_in(3)
@pairwise
@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize(
    ("when", "at"), [("progress", 1), ("progress", 7), ("record", 1), ("record", 2), ("record", 5)]
)
@pytest.mark.parametrize(("devices", "learners"), [("cpu", 1), ("cpu", 3), ("cpu:0/2,cpu:1/2", 2)])
def test_ctrl_c(when: str, at: int, devices: str, learners: int, tmp_path: Path) -> None:
    log = JsonLinesMonitor(tmp_path / "log")
    rule = SMA(tau=2)
    monitors = [log, Interrupter(when, at)]
    with context(monitors=monitors, devices=devices, learners=learners, rule=rule) as running:
        with pytest.raises(KeyboardInterrupt):
            running.train_and_test(5)
        # It ends on a whole tick, and what was done is in the log, each line whole.
        lines = [json.loads(line) for line in log.path.read_text().splitlines()]
        assert log.path.read_text() == "" or log.path.read_text().endswith("\n")
        assert running.engine.tasks % (2 * running.engine.parts.setting.learners) == 0
        assert (lines[-1]["tasks"] if lines else 0) == running.engine.tasks
        if when == "record":
            assert len(lines) == at
        # Nothing of it is lost: training goes on as if it had not been interrupted.
        monitors[1].at = 0  # type: ignore[attr-defined]
        done = running.engine.tasks
        running.train(4 * running.engine.clock.tasks_per_tick, TASKS)
        interrupted = running.variables
        assert running.test().examples == 13
        running.save(tmp_path / "model")
    with context(devices=devices, learners=learners, rule=rule) as running:
        running.train(done + 4 * running.engine.clock.tasks_per_tick, TASKS)
        assert same_weights(running.variables, interrupted)


class InTick(Monitor):
    """Presses Ctrl-C between the tasks of the tick that begins with this task."""

    interval = 0.0

    def __init__(self, task: int) -> None:
        self.task, self.heard = task, 0

    def progress(self, progress: Any) -> None:
        self.heard += progress.tasks == self.task
        if self.heard == 3:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
@one_in(2)
@pairwise
@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("ticks", [0, 1, 3])
@pytest.mark.parametrize(("devices", "learners"), [("cpu", 1), ("cpu", 3), ("cpu:0/2,cpu:1/2", 2)])
@pytest.mark.parametrize("rule", [SMA(tau=10, base_momentum=0.5), SSGD()], ids=str)
def test_ctrl_c_in_a_long_tick(
    rule: Any, devices: str, learners: int, ticks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick is undone: the base model is that of its beginning, and so are the learners, without velocity."""
    monkeypatch.setattr(scheduler, "SECONDS_TO_FINISH", 0.0)
    per_tick = 10 * learners * (devices.count(",") + 1)
    options: dict[str, Any] = {"rule": rule, "wpc": per_tick, "devices": devices, "learners": learners}
    options["solver"] = SolverConf(learning_rate=0.1, momentum=0.5)
    network = lambda: training(InnerProduct(number_of_outputs=8), BatchNorm(), InnerProduct(number_of_outputs=3))  # noqa: E731
    log, monitor = JsonLinesMonitor(tmp_path / "log"), InTick(ticks * per_tick)
    with context(network(), monitors=[log, monitor], **options) as running:
        with pytest.raises(KeyboardInterrupt):
            running.train(1000)
        assert monitor.heard == 3
        assert running.engine.tick == ticks
        assert json.loads(log.path.read_text().splitlines()[-1])["tasks"] == ticks * per_tick
        left = running.variables
        assert_usable_after_ctrl_c(running)
        running.train(2 * per_tick, TASKS)
        after = running.variables
    with context(network(), **options) as running:
        if ticks:
            running.train(ticks * per_tick, TASKS)
        assert same_weights(running.variables, left)
        engine_of(running).recovery.restart()
        running.train(2 * per_tick, TASKS)
        assert same_weights(running.variables, after)


def assert_usable_after_ctrl_c(running: ExecutionContext) -> None:
    """Without training, so that what follows can be compared."""
    assert_tested(running)
    assert within(SECONDS, lambda: running.predict(blobs().train.images)).shape == (40, 3)
    assert not running.engine.parts.flags.abort.any()


@pytest.mark.slow
@pytest.mark.usefixtures("default_handler")
def test_ctrl_c_in_a_tick_that_would_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SECONDS_TO_FINISH", 0.5)
    begun, hung = threading.Event(), threading.Event()

    def press() -> None:
        begun.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)
        if not ended.wait(SECONDS):
            hung.set()
            os.kill(os.getpid(), signal.SIGINT)  # twice ends it

    ended = threading.Event()
    network = perceptron(Probe(action=lambda where, learner, call: begun.set() if call == 50 else None))
    new_calls()
    with context(network, rule=SMA(tau=10**30)) as running:
        presser = threading.Thread(target=press)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            running.train_until_condition(-1.0)
        ended.set()
        presser.join()
        assert not hung.is_set()
        assert running.engine.tasks == 0
        assert_tested(running)


@pytest.mark.usefixtures("default_handler")
def test_ctrl_c_twice_does_not_wait_for_the_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SECONDS_TO_FINISH", 2 * SECONDS)
    monkeypatch.setattr(recovery, "DRAIN_SECONDS", 0.1)
    proceed, begun, ended = threading.Event(), threading.Event(), threading.Event()

    def act(where: str, learner: int, call: int) -> None:
        if (where, call) == ("forward", 5):
            begun.set()
            proceed.wait(2 * SECONDS)

    def press() -> None:
        # A signal that comes while the main thread is about to wait is seen with the next one, and they count as one
        # (that is Python's way): so press again, but not while the second one is being obeyed.
        begun.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        while not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(1.5)

    new_calls()
    with context(perceptron(Probe(action=act))) as running:
        presser = threading.Thread(target=press)
        presser.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            running.train(1000)
        ended.set()
        assert time.monotonic() - start < SECONDS
        presser.join()
        proceed.set()
        assert_tested(running)
        assert running.engine.tick in (5, 6)  # all had begun the sixth, so they may have finished it
        assert_usable(running)


@pytest.mark.usefixtures("default_handler")
def test_ctrl_c_while_testing() -> None:
    begun = threading.Event()

    def act(where: str, learner: int, call: int) -> None:
        begun.set()
        time.sleep(0.01)

    def press() -> None:
        begun.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    with context(perceptron(CheckProbe(action=act)), check_batch_size=1, learners=1, data=blobs(check=40)) as running:
        presser = threading.Thread(target=press)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            running.test()
        presser.join()
        assert running.test().examples == 40


@pytest.mark.usefixtures("default_handler")
def test_a_handler_of_ones_own_is_left_alone() -> None:
    pressed = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        with context(monitors=[Interrupter("progress", 3)]) as running:
            assert running.train(2).stopped == "count"
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert pressed == [1]


PROGRAM = """
    import sys
    from crossbow import JsonLinesMonitor, Monitor
    from tests.support import Probe, context, dawdle, perceptron

    class Speaker(Monitor):
        def record(self, record):
            print("epoch", record.epoch, flush=True)

    log = JsonLinesMonitor(sys.argv[1])
    with context(perceptron(Probe(action=dawdle(0.001))), monitors=[log, Speaker()], learners=2) as running:
        try:
            running.train_and_test(10**6)
        except KeyboardInterrupt:
            print("tasks", running.engine.tasks, flush=True)
            print("examples", running.test().examples, flush=True)
            raise
"""


def test_ctrl_c_in_a_program(tmp_path: Path) -> None:
    path = tmp_path / "log"
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path)],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        for _ in range(3):
            assert program.stdout.readline().startswith("epoch")
        program.send_signal(signal.SIGINT)
        output, errors = program.communicate(timeout=SECONDS)
    finally:
        program.kill()
    assert program.returncode == -signal.SIGINT  # as a shell expects of a program that was interrupted
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in errors
    told = dict(line.split() for line in output.splitlines() if not line.startswith("epoch"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert int(told["tasks"]) == lines[-1]["tasks"]
    assert int(told["tasks"]) % 2 == 0
    assert told["examples"] == "13"
    assert len(lines) >= 3
