"""Whole training runs on GPUs that are none: the weights are those of the CPU, in whatever order streams go on."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    Dataflow,
    DataflowNode,
    DurationUnit,
    ExecutionContext,
    ModelConf,
    Phase,
    Profile,
    SolverConf,
    SubGraph,
    SystemConf,
    TrainingUnit,
)
from crossbow.kernels.cuda.dependent_launch import SWITCH
from crossbow.ops import BatchNorm, Conv, Dropout, ElementWiseOp, InnerProduct, Pool, ReLU, SoftMax, SoftMaxLoss
from crossbow.synch import DiLoCo, ModelAveraging, PolyakRuppert, SynchronousEASGD
from crossbow.types import NonFiniteError, NonFiniteLossError, TaskError
from examples.custom_operator import Swish
from models.layers import add, classifier
from tests.combinations import covering, one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.support import Array, chain, pictures, with_metrics

DATA = pictures()
TICKS = 9


def network() -> Dataflow:
    nodes = chain(
        Conv(number_of_outputs=4, kernel_size=3, bias=False),
        BatchNorm(),
        ReLU(),
        Pool(method="max", kernel_size=2, stride=2),
        InnerProduct(number_of_outputs=8),
        ReLU(),
        Dropout(ratio=0.3),
        InnerProduct(number_of_outputs=3),
        SoftMax(),
        SoftMaxLoss(),
    )
    return Dataflow(SubGraph(nodes[0])).set_phase(Phase.TRAIN)


def context(
    devices: str,
    *,
    build: Callable[[], Dataflow] = network,
    learners: int = 2,
    rule: Any = None,
    system: Any = None,
    profile: Profile | None = None,
    **solver: Any,
) -> ExecutionContext:
    on_cpu: dict[str, Any] = {} if devices.startswith("cuda") else {"kernels": "reference", "threads_per_learner": 1}
    return ExecutionContext(
        [build(), None],
        data=DATA,
        model=ModelConf(batch_size=4, rule=rule),
        solver=SolverConf(**{"learning_rate": 0.05, "momentum": 0.9, **solver}),
        system=SystemConf(devices=devices, learners_per_device=learners, **{**on_cpu, **(system or {})}),
        profile=profile,
    )


def train(devices: str, *, seed: int = 0, tasks: int = 2 * TICKS, **options: Any) -> dict[str, Array]:
    with fake_cuda(devices.count("cuda"), seed), context(devices, **options) as running:
        running.train(tasks, TrainingUnit.TASKS)
        return running.variables


def assert_same(received: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float = 1e-5) -> None:
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(np.abs(value).max()) + 1e-3
        assert float(np.abs(received[name] - value).max()) <= tolerance * scale, name


RUNS: dict[str, dict[str, Any]] = {
    "sma": {},
    "sma of one learner": {"learners": 1},
    "sma of four learners": {"learners": 4},
    "sma with base momentum": {"rule": SMA(alpha=0.2, base_momentum=0.5)},
    "sma every third task": {"rule": SMA(tau=3)},
    "s-sgd": {"rule": SSGD()},
    "s-sgd, the mean clipped": {"rule": SSGD(), "clip_gradient_norm": 0.1},
    "synchronous easgd": {"rule": SynchronousEASGD(alpha=0.2)},
    "model averaging": {"rule": ModelAveraging()},
    "model averaging every third task": {"rule": ModelAveraging(tau=3)},
    "diloco every second task": {"rule": DiLoCo(tau=2)},
    "polyak-ruppert": {"rule": PolyakRuppert()},
    "polyak-ruppert with correction": {"rule": PolyakRuppert(alpha=0.2, tau=2)},
    "own gradients clipped": {"clip_gradient_norm": 0.1},
    "l1": {"weight_decay": 1e-3, "regularisation": "l1"},
    "nesterov": {"momentum_method": "nesterov", "weight_decay": 1e-3},
    "without momentum": {"momentum": 0.0},
    "a rate that changes every task": {"policy": "inv", "gamma": 0.1, "power": 0.7},
}


MUCH_ALIKE = (
    "l1",
    "model averaging",
    "model averaging every third task",
    "polyak-ruppert",
    "s-sgd",
    "sma of four learners",
    "synchronous easgd",
    "without momentum",
)


@pytest.mark.parametrize(
    ("name", "devices"),
    covering(
        [pytest.param(name, marks=pytest.mark.slow if name in MUCH_ALIKE else ()) for name in RUNS],
        ["cuda:0", "cuda:0,cuda:1"],
        together=1,
    ),
)
def test_weights_are_those_of_the_cpu(name: str, devices: str) -> None:
    cpu = "cpu" if devices == "cuda:0" else "cpu:0/2,cpu:1/2"
    assert_same(train(devices, **RUNS[name]), train(cpu, **RUNS[name]))


@pytest.mark.slow
def test_dependent_launches_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train("cuda:0")
    monkeypatch.setenv(SWITCH, "1")
    received = train("cuda:0")
    for name, value in expected.items():
        np.testing.assert_array_equal(received[name], value, err_msg=name)


# The rest of what a context does


@pytest.mark.slow
def test_testing_predicting_saving_and_loading(tmp_path: Any) -> None:
    path = tmp_path / "model.safetensors"
    with context("cpu") as running:
        running.train(6, TrainingUnit.TASKS)
        expected, tested = running.predict(DATA.check.images), running.test()  # type: ignore[union-attr]
        running.save(path)
    with fake_cuda(), context("cuda:0") as running:
        running.load(path)
        np.testing.assert_allclose(running.predict(DATA.check.images), expected, rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]
        received = running.test()
        assert received.loss == pytest.approx(tested.loss, rel=1e-5)
        assert (received.accuracy, received.examples) == (pytest.approx(tested.accuracy), tested.examples)


@pytest.mark.slow
@pytest.mark.parametrize("metrics", [(1, 2), (1, 2, 3)], ids=str)
def test_all_metrics(metrics: tuple[int, ...], tmp_path: Any) -> None:
    def build() -> Dataflow:
        return with_metrics(network(), *metrics)

    with context("cpu", build=build) as running:
        running.train(6, TrainingUnit.TASKS)
        expected = running.test()
        running.save(tmp_path / "model.safetensors")
    with fake_cuda(), context("cuda:0", build=build) as running:
        running.load(tmp_path / "model.safetensors")
        received = running.test()
        assert list(received.metrics) == [f"top{k}" for k in metrics[1:]]
        assert received.metrics == pytest.approx(expected.metrics)
        assert received.accuracy == pytest.approx(expected.accuracy)
        running.train(6, TrainingUnit.TASKS)
        assert running.test().metrics["top2"] > 0


@pytest.mark.slow
def test_training_goes_on_where_it_stopped() -> None:
    with fake_cuda(), context("cuda:0") as running:
        running.train(6, TrainingUnit.TASKS)
        running.test()
        running.train_for_duration(0.05, DurationUnit.SECONDS)
        done = running.engine.tasks
        received = running.variables
    assert_same(received, train("cpu", tasks=done))


@pytest.mark.slow
def test_a_learning_rate_that_drops_restarts_the_learners() -> None:
    policy = {"policy": "multistep", "step_values": (4, 10), "learning_rate_step_unit": "tasks"}
    assert_same(train("cuda:0", **policy), train("cpu", **policy))


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_and_the_context_stays_usable() -> None:
    with fake_cuda(), context("cuda:0", learning_rate=1e30) as running:
        with pytest.raises(NonFiniteLossError, match=r"became (nan|inf) in task|not finite after task"):
            running.train(12, TrainingUnit.TASKS)
        assert all(np.isfinite(value).all() for value in running.variables.values())


@pytest.mark.slow
def test_numbers_are_checked_where_asked() -> None:
    system = {"check_numerics": True}
    assert_same(train("cuda:0", system=system), train("cpu"))
    with fake_cuda(), context("cuda:0", system=system, learning_rate=1e38) as running:
        with pytest.raises(TaskError) as caught:
            running.train(12, TrainingUnit.TASKS)
        assert isinstance(caught.value.__cause__, NonFiniteError)


@pytest.mark.slow
@pytest.mark.parametrize("system", [{"deterministic": True}, {"precision": "tf32"}, {"precision": "float64"}])
def test_other_arithmetic(system: dict[str, Any]) -> None:
    """The fake rounds nothing to TF32; images then lie channels-last."""
    on_cpu = {"precision": "float64"} if system.get("precision") == "float64" else {}
    assert_same(train("cuda:0", system=system), train("cpu", system=on_cpu))


def with_an_operator_from_outside() -> Dataflow:
    wide, narrow = (InnerProduct(number_of_outputs=outputs) for outputs in (5, 3))
    nodes = chain(wide, Swish(), narrow, SoftMax(), SoftMaxLoss())
    return Dataflow(SubGraph(nodes[0])).set_phase(Phase.TRAIN)


def with_an_operator_that_is_used_twice() -> Dataflow:
    wide, narrow = (InnerProduct(number_of_outputs=outputs) for outputs in (6, 3))
    first, shared, *_ = nodes = chain(wide, InnerProduct(number_of_outputs=6), ReLU(), narrow, SoftMax(), SoftMaxLoss())
    head = node = first.shallow_copy()
    for following in (shared, *nodes[2:3], shared, *nodes[3:]):
        node = node.connect_to(following.shallow_copy())
    return Dataflow(SubGraph(head)).set_phase(Phase.TRAIN)


def with_residuals() -> Dataflow:
    """Two residual units, the second with a projection: sums in normalisations, and gradients that are added up."""

    def normalised(name: str, outputs: int, x: DataflowNode) -> DataflowNode:
        conv = add(f"{name}-conv", Conv(number_of_outputs=outputs, kernel_size=3, padding=1, bias=False), x)
        return add(f"{name}-norm", BatchNorm(), conv)

    first = add("conv", Conv(number_of_outputs=4, kernel_size=3, bias=False))
    x = add("relu", ReLU(), add("norm", BatchNorm(), first))
    x = add("relu1", ReLU(), add("sum1", ElementWiseOp(type="sum"), normalised("unit1", 4, x), x))
    both = normalised("unit2", 6, x), normalised("shortcut", 6, x)
    x = add("relu2", ReLU(), add("sum2", ElementWiseOp(type="sum"), *both))
    x = add("pool", Pool(method="average", global_pooling=True), x)
    return classifier(first, add("ip", InnerProduct(number_of_outputs=3), x))


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize("build", [with_an_operator_from_outside, with_an_operator_that_is_used_twice, with_residuals])
def test_other_networks(build: Callable[[], Dataflow]) -> None:
    assert_same(train("cuda:0", build=build), train("cpu", build=build))


@pytest.mark.slow
def test_the_second_gpu_alone() -> None:
    with fake_cuda(2), context("cuda:1") as running:
        running.train(8, TrainingUnit.TASKS)
        running.test()
        running.predict(DATA.train.images)
        received = running.variables
    assert_same(received, train("cpu", tasks=8))


@pytest.mark.slow
def test_contexts_that_nobody_closes_leave_no_threads() -> None:
    before = set(threading.enumerate())
    with fake_cuda():
        running = context("cuda:0")
        running.train(TICKS, TrainingUnit.TASKS)
        threads = set(threading.enumerate()) - before
        assert {thread.name for thread in threads} == {"watcher-0", "watcher-1"}
        del running
        gc.collect()
        for thread in threads:
            thread.join(20.0)
            assert not thread.is_alive()
