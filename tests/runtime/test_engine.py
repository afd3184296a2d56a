"""The engine against a simulation in plain NumPy, and the state it leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, ExecutionContext, Monitor, SolverConf, TrainingUnit
from crossbow.ops import Constant, Gaussian, InnerProduct
from crossbow.synch import DiLoCo, ModelAveraging, PolyakRuppert, SynchronousEASGD
from crossbow.types import CrossbowError, TaskError
from tests.combinations import one_in, pairwise
from tests.runtime.simulation import Model, Simulation
from tests.support import KERNELS, SECONDS, Probe, blobs, context, engine_of, perceptron, training

TICKS = 20
DATA = blobs(examples=30, check=7)
FIXED = SolverConf(learning_rate=0.1)
HEAVY = SolverConf(learning_rate=0.05, momentum=0.9, weight_decay=0.01)


def logistic(**options: Any) -> ExecutionContext:
    layer = InnerProduct(
        number_of_outputs=3, weight_initialiser=Gaussian(std=0.5), bias_initialiser=Constant(value=0.25)
    )
    return context(training(layer), data=DATA, precision="float64", **options)


def base_model(running: ExecutionContext) -> Model:
    variables = running.variables
    return Model(variables["InnerProduct0.weights"].copy(), variables["InnerProduct0.bias"].copy())


def simulate(running: ExecutionContext, learners: int, solver: SolverConf, rate: Any = None) -> Simulation:
    return Simulation(
        DATA.train.images,
        DATA.train.labels,
        batch_size=running.model.batch_size,
        seed=running.system.seed,
        learners=learners,
        start=base_model(running),
        rate=rate or (lambda task: solver.learning_rate),
        momentum=solver.momentum,
        decay=solver.weight_decay,
    )


def assert_equal(running: ExecutionContext, expected: Simulation) -> None:
    received = base_model(running)
    np.testing.assert_allclose(received.weights, expected.z.weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose(received.bias, expected.z.bias, rtol=0, atol=1e-12)


@pytest.mark.slow
@one_in(4)
@pairwise
@pytest.mark.parametrize(
    ("learners", "devices"),
    [*((k, "cpu") for k in (1, 2, 3)), *((k, "cpu:0/2,cpu:1/2") for k in (1, 2)), (2, "cpu:0/3,cpu:1/3,cpu:2/3")],
)
@pytest.mark.parametrize("solver", [FIXED, HEAVY], ids=["plain", "momentum"])
@pytest.mark.parametrize(
    ("alpha", "tau", "base_momentum"), [(None, 1, 0.0), (0.1, 1, 0.5), (0.05, 3, 0.0), (None, 2, 0.3)]
)
def test_sma_is_that_of_the_paper(
    alpha: float | None, tau: int, base_momentum: float, solver: SolverConf, learners: int, devices: str
) -> None:
    rule = SMA(alpha=alpha, tau=tau, base_momentum=base_momentum)
    everyone = learners * (devices.count(",") + 1)
    with logistic(rule=rule, learners=learners, devices=devices, solver=solver) as running:
        expected = simulate(running, everyone, solver)
        history = running.train(TICKS * everyone * tau, TrainingUnit.TASKS)
        for _ in range(TICKS):
            expected.sma_tick(alpha or 1 / max(everyone, 2), tau, base_momentum)
        assert_equal(running, expected)
        assert running.engine.tick == TICKS
        assert history.records[-1].tasks == expected.task
        for member, weights, velocity in zip(running.engine.members, expected.w, expected.v, strict=True):
            replica = running.engine.program.model.export(member.replica.weights)
            np.testing.assert_allclose(replica["InnerProduct0.weights"], weights.weights, rtol=0, atol=1e-12)
            if solver.momentum:
                replica = running.engine.program.model.export(member.replica.velocity)
                np.testing.assert_allclose(replica["InnerProduct0.bias"], velocity.bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("learners", [1, 2, 3])
@pytest.mark.parametrize("solver", [FIXED, HEAVY], ids=["plain", "momentum"])
def test_ssgd_steps_along_the_mean_gradient(solver: SolverConf, learners: int, devices: str) -> None:
    everyone = learners * (devices.count(",") + 1)
    with logistic(rule=SSGD(), learners=learners, devices=devices, solver=solver) as running:
        expected = simulate(running, everyone, solver)
        running.train(TICKS * everyone, TrainingUnit.TASKS)
        for _ in range(TICKS):
            expected.ssgd_tick()
        assert_equal(running, expected)


@pairwise
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("learners", [1, 2, 3])
@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize("solver", [FIXED, HEAVY], ids=["plain", "momentum"])
def test_model_averaging_takes_the_mean(solver: SolverConf, tau: int, learners: int, devices: str) -> None:
    everyone = learners * (devices.count(",") + 1)
    with logistic(rule=ModelAveraging(tau=tau), learners=learners, devices=devices, solver=solver) as running:
        expected = simulate(running, everyone, solver)
        running.train(TICKS * everyone * tau, TrainingUnit.TASKS)
        for _ in range(TICKS):
            expected.averaging_tick(tau)
        assert_equal(running, expected)


@one_in(2)
@pairwise
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("learners", [1, 2, 3])
@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize(("rate", "momentum"), [(0.7, 0.9), (0.5, 0.0)])
def test_diloco_steps_along_the_mean_of_the_moves(
    rate: float, momentum: float, tau: int, learners: int, devices: str
) -> None:
    everyone = learners * (devices.count(",") + 1)
    rule = DiLoCo(tau, rate, momentum)
    with logistic(rule=rule, learners=learners, devices=devices, solver=HEAVY) as running:
        expected = simulate(running, everyone, HEAVY)
        running.train(TICKS * everyone * tau, TrainingUnit.TASKS)
        for _ in range(TICKS):
            expected.diloco_tick(tau, rate, momentum)
        assert_equal(running, expected)


@pairwise
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("learners", [1, 2, 3])
@pytest.mark.parametrize(("alpha", "tau"), [(0.0, 1), (0.3, 1), (0.3, 2)])
def test_polyak_ruppert_is_the_mean_of_all_that_was(alpha: float, tau: int, learners: int, devices: str) -> None:
    """In one call or in many: the ticks are counted on."""
    everyone = learners * (devices.count(",") + 1)
    rule = PolyakRuppert(alpha=alpha, tau=tau)
    with logistic(rule=rule, learners=learners, devices=devices, solver=HEAVY) as running:
        expected = simulate(running, everyone, HEAVY)
        for ticks in (1, 1, TICKS - 2):
            running.train(ticks * everyone * tau, TrainingUnit.TASKS)
        for clock in range(TICKS):
            expected.polyak_ruppert_tick(tau, alpha, clock)
        assert_equal(running, expected)
        for member, weights in zip(running.engine.members, expected.w, strict=True):
            replica = running.engine.program.model.export(member.replica.weights)
            np.testing.assert_allclose(replica["InnerProduct0.weights"], weights.weights, rtol=0, atol=1e-12)


def test_synchronous_easgd_is_sma_without_momentum_of_z() -> None:
    with logistic(rule=SynchronousEASGD(alpha=0.2, tau=2), solver=HEAVY) as running:
        expected = simulate(running, 2, HEAVY)
        running.train(4 * TICKS, TrainingUnit.TASKS)
        for _ in range(TICKS):
            expected.sma_tick(0.2, 2, 0.0)
        assert_equal(running, expected)


def test_the_loss_is_the_mean_of_the_tasks() -> None:
    with logistic(rule=SMA(), learners=2, solver=FIXED) as running:
        expected = simulate(running, 2, FIXED)
        history = running.train(3)  # of 30 examples in batches of 4: tasks 0–7, 8–15, 16–23
        for _ in range(12):
            expected.sma_tick(0.5, 1, 0.0)
        parts = [expected.losses[start:end] for start, end in ((0, 8), (8, 16), (16, 24))]
        assert [record.tasks for record in history.records] == [8, 16, 24]
        assert [record.loss for record in history.records] == pytest.approx(
            [np.mean(part) for part in parts], abs=1e-12
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [SMA(alpha=0.2, base_momentum=0.5), SSGD(), ModelAveraging(), PolyakRuppert(alpha=0.1)], ids=str
)
def test_many_calls_are_as_one(rule: Any) -> None:
    """Learners keep weights and velocities between calls: nothing is restarted that was not asked for."""
    models = []
    for parts in ([24], [2] * 12, [10, 14]):
        with logistic(rule=rule, solver=HEAVY) as running:
            for tasks in parts:
                running.train(tasks, TrainingUnit.TASKS)
                running.test()  # neither does testing disturb them, nor predicting, nor looking
                running.predict(DATA.train.images[:3])
            models.append(base_model(running))
    assert all(model.weights.tobytes() == models[0].weights.tobytes() for model in models)


# Learning-rate policies.


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("base_momentum", [0.0, 0.5])
def test_a_drop_of_the_learning_rate_restarts_the_learners(base_momentum: float, momentum: float, devices: str) -> None:
    solver = SolverConf(learning_rate=0.2, policy="step", gamma=0.5, step_size=14, momentum=momentum)
    k = 2 * (devices.count(",") + 1)
    with logistic(rule=SMA(base_momentum=base_momentum), devices=devices, solver=solver) as running:
        expected = simulate(running, k, solver, rate=lambda task: 0.2 * 0.5 ** (task // 14))
        for tick in range(TICKS):
            if tick and (tick * k) // 14 > ((tick - 1) * k) // 14:
                expected.restart()
            expected.sma_tick(1 / k, 1, base_momentum)
        running.train(TICKS * k, TrainingUnit.TASKS)
        assert_equal(running, expected)


def test_learners_go_on_at_a_drop_where_no_restart_is_wanted() -> None:
    solver = SolverConf(learning_rate=0.2, policy="step", gamma=0.5, step_size=14, momentum=0.9)
    with logistic(rule=SMA(), solver=solver, restart=False) as running:
        expected = simulate(running, 2, solver, rate=lambda task: 0.2 * 0.5 ** (task // 14))
        for _ in range(TICKS):
            expected.sma_tick(0.5, 1, 0.0)
        running.train(TICKS * 2, TrainingUnit.TASKS)
        assert_equal(running, expected)


def test_ssgd_restarts_too() -> None:
    solver = SolverConf(learning_rate=0.2, policy="multistep", gamma=0.5, step_values=(6, 20), momentum=0.9)
    with logistic(rule=SSGD(), solver=solver) as running:
        expected = simulate(running, 2, solver, rate=lambda task: 0.2 * 0.5 ** ((task >= 6) + (task >= 20)))
        for tick in range(TICKS):
            if tick in (3, 10):
                expected.restart()
            expected.ssgd_tick()
        running.train(TICKS * 2, TrainingUnit.TASKS)
        assert_equal(running, expected)


# What the clock means.


@KERNELS
def test_learners_that_are_not_where_the_data_is(kernels: str) -> None:
    """More learners than examples in an epoch, than cores, than batches."""
    with context(perceptron(), learners=5, kernels=kernels, data=blobs(examples=6), batch_size=4) as running:
        history = running.train(3)
        assert [record.tasks for record in history.records] == [5]
        assert history.records[-1].epoch == 3
        assert running.test().examples == 13


# Reentrancy: an engine is not used from within, or from several threads.


def test_the_context_is_not_used_while_it_trains(tmp_path: Path) -> None:
    caught: list[str] = []
    saved = tmp_path / "model"

    class Meddler(Monitor):
        interval = 0.0

        def progress(self, progress: Any) -> None:
            for use in (
                running.test,
                lambda: running.predict(DATA.train.images[:1]),
                lambda: running.train(1),
                lambda: running.variables,
                lambda: running.save(saved),
                lambda: running.load(saved),
            ):
                try:
                    use()
                except CrossbowError as error:
                    caught.append(str(error))

    with logistic(monitors=[Meddler()], rule=SMA()) as running:
        running.save(saved)
        running.train(2)
        assert caught
        assert len(caught) % 6 == 0
        assert all("while" in text and "train" in text for text in caught)


def test_the_context_may_be_used_between_the_stretches() -> None:
    accuracies = []

    class Tester(Monitor):
        def record(self, record: Any) -> None:
            accuracies.append(running.test().accuracy)
            running.predict(DATA.train.images[:1])

    with logistic(monitors=[Tester()], rule=SMA(), seed=4) as running:
        running.train(3)
        tested = base_model(running)
    with logistic(rule=SMA(), seed=4) as running:
        running.train(3)
        assert base_model(running).weights.tobytes() == tested.weights.tobytes()
    assert len(accuracies) == 3


# When the scheduler listens.


def test_a_failure_is_heard_while_a_batch_is_waited_for() -> None:
    """The loader's thread is in the second batch, and stays there until the failure of the first is raised."""
    loading, heard, late = threading.Event(), threading.Event(), []

    def fail(where: str, learner: int, call: int) -> None:
        assert loading.wait(SECONDS)
        raise RuntimeError("no luck")

    with context(perceptron(Probe(action=fail)), learners=1) as running:
        loader = running.engine.loader
        fill = loader._source

        def slowly(selection: Any, images: Any, labels: Any) -> None:
            if selection.indices.tobytes() != first.tobytes():
                loading.set()
                late.append(not heard.wait(SECONDS / 2))
            fill(selection, images, labels)

        first = np.empty(4, np.intp)
        running.engine.order.indices(0, first)
        loader._source = slowly
        with pytest.raises(TaskError, match="no luck"):
            running.train(2)
        heard.set()
        loader.start(0)  # waits for the thread
        assert late[0] is False


@pytest.mark.parametrize(
    "use",
    [
        lambda engine: engine.weights,
        lambda engine: engine.load({}, "a test"),
        lambda engine: engine.predict(np.zeros((1, 6), np.float32)),
        lambda engine: engine.snapshot(),
        lambda engine: engine.restore(None, "a test"),
    ],
)
def test_nothing_reads_or_changes_an_engine_that_is_busy(use: Callable[[Any], object]) -> None:
    with context() as running:
        engine = engine_of(running)
        with engine._usage.busy("training", engine.loader), pytest.raises(CrossbowError, match="while training"):
            use(engine)
