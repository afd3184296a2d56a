"""Adam and its relatives in the engine: under every rule as the simulator computes them, and with all options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, Dataset, ExecutionContext, SolverConf, TaskError, TrainingUnit
from crossbow.ops import InnerProduct
from crossbow.synch import (
    AsynchronousSGD,
    DiLoCo,
    Gossip,
    Hogwild,
    ModelAveraging,
    PolyakRuppert,
    Rule,
    RuleSequence,
    simulate,
)
from crossbow.types import ConfigurationError, NonFiniteError
from tests.combinations import one_in, pairwise
from tests.kernels.cuda.fake import fake_cuda
from tests.runtime import test_free as free
from tests.runtime.cuda import test_exchange as on_gpu
from tests.support import FAST, context, training

TASKS = TrainingUnit.TASKS
SOLVERS = {
    "adam, l2, clipped": SolverConf(method="adam", learning_rate=0.05, weight_decay=0.1, clip_gradient_norm=0.5),
    "adamw, restarts": SolverConf(
        method="adamw", learning_rate=0.05, weight_decay=0.5, policy="step", gamma=0.5, step_size=12, beta2=0.9
    ),
    "rmsprop, momentum": SolverConf(method="rmsprop", learning_rate=0.02, momentum=0.5, rho=0.8, epsilon=1e-3),
    "adagrad": SolverConf(method="adagrad", learning_rate=0.1, policy="inv", gamma=0.1),
}
EVERY_SOLVER = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
BARRIER = [SMA(), SMA(tau=2, base_momentum=0.3), SSGD(), ModelAveraging(tau=3), PolyakRuppert(alpha=0.3)]
BARRIER += [DiLoCo(tau=3)]
FREE = [rule for rule in free.RULES if rule != AsynchronousSGD(weight=0.5, sends="gradient")]
"""The gradients of the rule that is left out have a weight, which a step of Adam does not show."""


def least_squares(rule: Rule | RuleSequence, solver: SolverConf, **options: Any) -> ExecutionContext:
    settings: dict[str, Any] = {"learners": 2, "batch_size": 1, "precision": "float64", "seed": free.SEED, **options}
    return context(free.linear(), data=Dataset((free.rows, free.targets)), rule=rule, solver=solver, **settings)


@one_in(4)
@pairwise
@EVERY_SOLVER
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2", "cuda:0", "cuda:0,cuda:1"])
@pytest.mark.parametrize("rule", BARRIER, ids=str)
def test_rules_with_a_barrier_are_as_in_the_simulator(rule: Rule, devices: str, solver: SolverConf) -> None:
    learners = 1 if "," in devices else 2
    made = free.expected(rule, 2, [0, 1] * 18, 36, solver)
    gpu = devices.startswith("cuda")
    options: dict[str, Any] = {"kernels": "auto", "threads": None} if gpu else {}
    with fake_cuda(2), least_squares(rule, solver, devices=devices, learners=learners, **options) as running:
        running.train(36, TASKS)
        np.testing.assert_allclose(free._flat(running.variables), made.base[-1], rtol=0, atol=1e-12)


@one_in(3)
@pairwise
@EVERY_SOLVER
@pytest.mark.parametrize("learners", [1, 3])
@pytest.mark.parametrize("rule", FREE, ids=str)
def test_rules_without_a_barrier_are_as_in_the_simulator(rule: Rule, learners: int, solver: SolverConf) -> None:
    if learners == 1 and rule == free.Grouping(2):
        rule = free.Grouping(1)
    if isinstance(rule, Hogwild):
        learners = 1  # several of its learners may read z at any time
    wishes = np.random.default_rng(learners).integers(0, learners, 1000).tolist()
    made = free.expected(rule, learners, wishes, 36, solver)
    z, replicas = free.ordered(rule, learners, made.events.tolist(), solver, wpc=None)
    np.testing.assert_allclose(replicas, made.replicas[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [AsynchronousSGD(), free.SSP(bound=1), Gossip(probability=1), free.Grouping(2)], ids=str
)
def test_rules_without_a_barrier_on_a_gpu(rule: Rule) -> None:
    solver = SOLVERS["adam, l2, clipped"]
    wishes = np.random.default_rng(1).integers(0, 2, 400).tolist()
    made = free.expected(rule, 2, wishes, 16, solver)
    z, replicas = on_gpu.ordered(rule, 2, made.events.tolist(), solver)
    np.testing.assert_allclose(replicas, made.replicas[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


def test_a_sequence_of_rules_is_as_in_the_simulator() -> None:
    """Every phase begins with moments of 0, wherever they are."""
    rule, solver = RuleSequence(((SMA(), 4), (SSGD(), 3))), SOLVERS["adam, l2, clipped"]
    made = free.expected(rule, 2, [0, 1] * 12, 24, solver)  # type: ignore[arg-type]
    with least_squares(rule, solver) as running:
        running.train(24, TASKS)
        np.testing.assert_allclose(free._flat(running.variables), made.base[-1], rtol=0, atol=1e-12)


@EVERY_SOLVER
def test_local_variables_are_as_in_the_simulator(solver: SolverConf) -> None:
    """The bias takes the learner's own step; weights and bias share the count of steps."""
    rule, given = SMA(tau=2), {"learners": 2, "tasks": 36, "events": [0, 1] * 18, "solver": solver}
    made = simulate(rule, **free.WITH_BIAS, **given, local_variables=[1])  # type: ignore[arg-type]
    with context(
        free.linear(bias=True), data=Dataset((free.rows, free.targets)), rule=rule, learners=2, batch_size=1,
        solver=solver, precision="float64", seed=free.SEED, local_variables=("*.bias",),
    ) as running:  # fmt: skip
        running.train(36, TASKS)
        np.testing.assert_allclose(free._flat(running.variables), made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernels", ["reference", FAST])
@pytest.mark.parametrize("frozen", [False, True])
def test_multipliers_of_the_learning_rate(kernels: str, *, frozen: bool) -> None:
    """The first step of Adam is as long as the rate, whatever the gradient; that of a frozen variable is 0."""
    layer = InnerProduct(
        number_of_outputs=3,
        weight_learning_rate_multiplier=0.0 if frozen else 0.5,
        bias_learning_rate_multiplier=2.0,
    )
    solver = SolverConf(method="adamw", learning_rate=0.01, epsilon=1e-12)
    with context(training(layer), rule=SSGD(), learners=1, solver=solver, kernels=kernels) as running:
        before = running.variables
        running.train(1, TASKS)
        moved = {name: np.abs(value - before[name]) for name, value in running.variables.items()}
    np.testing.assert_allclose(moved["InnerProduct0.weights"], 0.0 if frozen else 0.005, atol=1e-6)
    np.testing.assert_allclose(moved["InnerProduct0.bias"], 0.02, atol=1e-6)


@pytest.mark.parametrize("kernels", ["reference", FAST])
def test_the_weights_train_at_the_default_rate(kernels: str) -> None:
    with context(solver=SolverConf(method="adam"), rule=SSGD(), kernels=kernels, learners=1) as running:
        before = running.test().loss
        running.train(20)
        assert running.test().loss < 0.8 * before


def test_numbers_of_the_step_are_checked() -> None:
    """In float32 the square of a gradient of 1e25 is infinite."""
    solver = SolverConf(method="adam", weight_decay=1e25)
    with (
        context(solver=solver, check_numerics=True, rule=SMA(), learners=1) as running,
        pytest.raises(TaskError) as caught,
    ):
        running.train(4, TASKS)
    assert isinstance(caught.value.__cause__, NonFiniteError)
    assert "second moment of 'InnerProduct0.weights'" in str(caught.value.__cause__)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_mixed_precision_is_near_float32(precision: str) -> None:
    """Under float16, too, whose gradients have a loss scale until they reach the step."""
    results = []
    for kind in (precision, "float32"):
        with fake_cuda():
            options: dict[str, Any] = {"devices": "cuda:0", "kernels": "auto", "threads": None, "precision": kind}
            with context(solver=SolverConf(method="adam"), rule=SMA(), learners=2, **options) as running:
                running.train(12, TASKS)
                results.append(free._flat(running.variables))
    np.testing.assert_allclose(*results, atol=2e-3)


# Combinations without a meaning


def test_a_weight_of_gradients_is_refused() -> None:
    rule, solver = AsynchronousSGD(weight=0.5, sends="gradient"), SolverConf(method="adam")
    message = r"AsynchronousSGD: weight must be 1 or '1/staleness' with method='adam', whose step does not depend on"
    with pytest.raises(ConfigurationError, match=message):
        context(rule=rule, solver=solver)
    with pytest.raises(ConfigurationError, match=message):
        simulate(
            rule, initial=[1.0], gradient=lambda w, learner, task: w, learners=1, events=1, speeds=[1], solver=solver
        )
    AsynchronousSGD(weight=0.5).check_solver(solver)
    AsynchronousSGD(weight="1/staleness", sends="gradient").check_solver(solver)


def test_skipped_variables_are_refused_where_z_is_stepped() -> None:
    with pytest.raises(ConfigurationError, match=r"skip must be 0 if gradients are sent and method='rmsprop'"):
        context(rule=free.SSP(), solver=SolverConf(method="rmsprop"), skip=0.5)
    context(rule=AsynchronousSGD(), solver=SolverConf(method="rmsprop"), skip=0.5).close()
