"""Training with tensors of 16 bits: near the CPU's weights; learners average whatever becomes of a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, Dataflow, Dataset, Phase, SubGraph, SystemConf, TrainingUnit
from crossbow.kernels.cuda import mixed
from crossbow.ops import (
    LRN,
    BatchNorm,
    Concat,
    Conv,
    Flatten,
    Gaussian,
    InnerProduct,
    Pool,
    ReLU,
    Scale,
    SoftMax,
    SoftMaxLoss,
)
from crossbow.runtime.memory import assign, on_host
from crossbow.types import ConfigurationError, NonFiniteError, NonFiniteLossError, TaskError
from tests.combinations import covering, one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.runtime.cuda import test_training as engine
from tests.support import Array, chain, training

pytestmark = [pytest.mark.slow]  # on the emulator; what they share with CPUs is tested there

NARROW = ("float16", "bfloat16")
TOLERANCES = {"float16": 1e-2, "bfloat16": 3e-2}
"""Of weights after a few ticks, relative to the largest of a variable; one that was 0 may be small by chance. A
ReLU that opens here and stays closed there is part of it."""
SMALL = 0.1
types = pytest.mark.parametrize("precision", NARROW)


def train(precision: str, devices: str = "cuda:0", *, system: Mapping[str, Any] | None = None, **options: Any) -> Any:
    return engine.train(devices, system={"precision": precision, **(system or {})}, **options)


def assert_near(received: Mapping[str, Array], expected: Mapping[str, Array], precision: str) -> None:
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(float(np.abs(value).max()), SMALL)
        assert float(np.abs(received[name] - value).max()) <= TOLERANCES[precision] * scale, name


RUNS = {name: engine.RUNS[name] for name in ("sma", "sma every third task", "s-sgd", "own gradients clipped")}


@pytest.mark.parametrize(
    ("name", "devices", "precision"), covering(RUNS, ["cuda:0", "cuda:0,cuda:1"], NARROW, together=1)
)
def test_weights_are_nearly_those_of_the_cpu(name: str, devices: str, precision: str) -> None:
    cpu = "cpu" if devices == "cuda:0" else "cpu:0/2,cpu:1/2"
    assert_near(train(precision, devices, **RUNS[name]), engine.train(cpu, **RUNS[name]), precision)


@pytest.mark.slow
@types
def test_residual_units(precision: str) -> None:
    """The sum after a normalisation is rounded once, and so is a gradient that a convolution adds."""
    build = engine.with_residuals
    assert_near(train(precision, build=build), engine.train("cpu", build=build), precision)


@one_in(2)
@types
def test_graphs_and_the_order_of_streams_change_no_bit(precision: str) -> None:
    runs = [train(precision, seed=seed, system={"graphs": graphs}) for seed, graphs in ((0, True), (1, False))]
    for name, value in runs[0].items():
        np.testing.assert_array_equal(runs[1][name], value)


def with_neighbours_of_float32() -> Dataflow:
    """LRN and SoftMax get float32 between operators of 16 bits; the variables of BatchNorm and Scale stay float32."""
    nodes = chain(
        *(
            Conv(number_of_outputs=4, kernel_size=3, bias=False),
            LRN(),
            Pool(kernel_size=2, stride=2),
            BatchNorm(),
            ReLU(),
            Scale(),
        ),
        *(Flatten(), InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss()),
    )
    return Dataflow(SubGraph(nodes[0])).set_phase(Phase.TRAIN)


def with_branches() -> Dataflow:
    """Two gradients of one output, of which one was float32 before."""
    first = chain(Conv(number_of_outputs=4, kernel_size=3), ReLU())
    left, right = chain(Conv(number_of_outputs=2, kernel_size=1)), chain(LRN())
    last = chain(Concat(), InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    for branch in (left, right):
        first[-1].connect_to(branch[0])
        branch[-1].connect_to(last[0])
    return Dataflow(SubGraph(first[0])).set_phase(Phase.TRAIN)


@pytest.mark.slow
@types
@pytest.mark.parametrize(
    "build",
    [
        with_neighbours_of_float32,
        with_branches,
        engine.with_an_operator_from_outside,
        engine.with_an_operator_that_is_used_twice,
    ],
)
def test_networks_of_both_precisions(build: Callable[[], Dataflow], precision: str) -> None:
    tasks = {"tasks": 6}  # before a ReLU opens here that stays closed there
    received, expected = train(precision, build=build, **tasks), engine.train("cpu", build=build, **tasks)
    assert_near(received, expected, precision)


@types
def test_testing_and_predicting(precision: str) -> None:
    images = engine.DATA.train.images
    with engine.context("cpu") as running:
        expected, tested, weights = running.predict(images), running.test(), running.variables
    with fake_cuda(), engine.context("cuda:0", system={"precision": precision}) as running:
        assert {value.dtype for value in running.variables.values()} == {np.dtype(np.float32)}
        for name, value in weights.items():
            np.testing.assert_array_equal(running.variables[name], value)
        received = running.predict(images)
        assert received.dtype == np.float32
        np.testing.assert_allclose(received, expected, atol=TOLERANCES[precision])
        assert running.test().loss == pytest.approx(tested.loss, rel=TOLERANCES[precision])


@pytest.mark.slow
@types
def test_intermediate_results_take_half_the_memory(precision: str) -> None:
    arenas = {}
    for name in ("tf32", precision):
        with fake_cuda(), engine.context("cuda:0", system={"precision": name}) as running:
            arenas[name] = running.engine.program.plan.without_reuse
            steps = running.engine.program.describe()
    assert arenas[precision] < 0.75 * arenas["tf32"]
    first, *_, last = [line for line in steps.splitlines() if "precision" in line]
    assert f"narrow_weights {precision}" in first
    assert f"widen_gradient {precision}" in last


# Overflow


def scalings(running: Any) -> list[Any]:
    """Every learner's, on the GPU: scale, whether a gradient was too large, steady tasks, tasks with such gradients."""
    found = []
    for member in running.engine.members:
        task = next(task for key, task in member.learner.tasks.items() if key[0] == "synchronise")
        (call,) = (step.call for step in task.compute.steps if getattr(step.call, "name", "") == "widen_gradient")
        found.append(call.references[3])
    return found


def test_a_learner_whose_gradients_overflow_averages_as_ever() -> None:
    """Without gradients and momentum it is drawn to z, which the other learner moves."""
    with fake_cuda(), engine.context("cuda:0", momentum=0.0, system={"precision": "float16"}) as running:
        first, second = scalings(running)
        assign(second, np.array([2.0**40, 0, 0, 0], np.float32))
        own, z = (
            on_host(v).copy() for v in (running.engine.members[1].replica.weights, running.engine.recovery.base[0])
        )
        running.train(2 * engine.TICKS, TrainingUnit.TASKS)
        drawn, moved = on_host(running.engine.members[1].replica.weights), on_host(running.engine.recovery.base[0])
        assert on_host(first)[3] == 0
        assert on_host(second).tolist() == [2.0 ** (41 - engine.TICKS), 1, 0, engine.TICKS - 1]
    assert np.abs(moved - z).max() > 1e-3
    assert np.abs(drawn - own).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("rule", [SMA(), SSGD()])
def test_tasks_without_a_gradient_change_nothing(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "FIRST_SCALE", 2.0**60)
    with fake_cuda(), engine.context("cuda:0", rule=rule, system={"precision": "float16"}) as running:
        before = running.variables
        running.train(2 * engine.TICKS, TrainingUnit.TASKS)
        for name, value in before.items():
            if "running" not in name:
                np.testing.assert_allclose(running.variables[name], value, rtol=1e-6, err_msg=name)


@one_in(2)
@pytest.mark.parametrize("rule", [SMA(), SSGD()])
def test_the_scale_recovers(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "FIRST_SCALE", 2.0**20)
    with fake_cuda(), engine.context("cuda:0", rule=rule, system={"precision": "float16"}) as running:
        before = running.variables
        running.train(40, TrainingUnit.TASKS)
        assert all(not np.array_equal(before[name], value) for name, value in running.variables.items())
        assert all(np.isfinite(value).all() for value in running.variables.values())
        for scale, _, _, overflows in map(on_host, scalings(running)):
            assert 0 < overflows < 10
            assert scale == 2.0 ** (20 - overflows)


class Wide(InnerProduct):
    """Another class, which might be another function: its tensors and variables are float32's."""


def with_wide_variables_alone() -> Dataflow:
    return training(BatchNorm(), ReLU(), Flatten(), Wide(number_of_outputs=6), ReLU(), Wide(number_of_outputs=3))


def with_wide_variables_behind() -> Dataflow:
    """What overflows is the gradient that reaches a float32 operator from one of 16 bits."""
    large = Gaussian(std=1000.0)
    return training(
        *(Flatten(), Wide(number_of_outputs=6), ReLU(), InnerProduct(number_of_outputs=3, weight_initialiser=large))
    )


@pytest.mark.slow
@types
def test_variables_of_float32_alone(precision: str) -> None:
    """They have no vector of 16 bits; the scale is brought up to date all the same."""
    build = with_wide_variables_alone
    assert_near(train(precision, build=build), engine.train("cpu", build=build), precision)


def test_an_overflow_that_only_float32_variables_see() -> None:
    options = {"build": with_wide_variables_behind, "system": {"precision": "float16"}, "learning_rate": 1e-6}
    with fake_cuda(), engine.context("cuda:0", **options) as running:
        running.train(12, TrainingUnit.TASKS)
        assert all(np.isfinite(value).all() for value in running.variables.values())
        assert all(on_host(scaling)[3] > 0 for scaling in scalings(running))


def test_a_gradient_that_is_not_finite_at_any_scale_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "FIRST_SCALE", mixed.SMALLEST_SCALE)
    monkeypatch.setattr(mixed, "LARGEST_SCALE", mixed.SMALLEST_SCALE)
    images = engine.DATA.train.images.astype(np.float32) * np.float32(1e6)
    labels = engine.DATA.train.labels
    data = Dataset((images, labels), None)
    monkeypatch.setattr(engine, "DATA", data)
    with (
        fake_cuda(),
        engine.context("cuda:0", system={"precision": "float16"}) as running,
        pytest.raises(NonFiniteLossError),
    ):
        running.train(12, TrainingUnit.TASKS)


@types
def test_a_loss_that_is_not_finite_ends_the_run(precision: str) -> None:
    with fake_cuda(), engine.context("cuda:0", learning_rate=1e30, system={"precision": precision}) as running:
        with pytest.raises(NonFiniteLossError, match=r"became (nan|inf) in task|not finite after task"):
            running.train(12, TrainingUnit.TASKS)
        assert all(np.isfinite(value).all() for value in running.variables.values())


@pytest.mark.slow
@types
def test_numbers_are_checked_where_asked(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient of float16 that overflows is no mistake; a weight that does is."""
    monkeypatch.setattr(mixed, "FIRST_SCALE", 2.0**20)
    system = {"check_numerics": True}
    assert_near(train(precision, system=system), train(precision), precision)  # ReLUs are not fused
    with (
        fake_cuda(),
        engine.context("cuda:0", system={**system, "precision": precision}, learning_rate=1e38) as running,
        pytest.raises(TaskError) as caught,
    ):
        running.train(12, TrainingUnit.TASKS)
    assert isinstance(caught.value.__cause__, NonFiniteError)


@pytest.mark.parametrize("precision", [*NARROW, "tf32"])
def test_it_is_for_gpus(precision: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{precision}' is for GPUs. Received: precision='{precision}'"):
        engine.context("cpu", system={"precision": precision})


def test_an_unknown_precision() -> None:
    with pytest.raises(ConfigurationError, match=r"'bfloat16', 'float16'.*Received: precision='half'"):
        SystemConf(precision="half")
