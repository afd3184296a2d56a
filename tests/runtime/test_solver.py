"""Everything that the solver can do, by the engine, against a simulation in plain NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, ExecutionContext, SolverConf, TrainingUnit
from crossbow.ops import Constant, Conv, Gaussian, InnerProduct, ReLU
from crossbow.runtime.coefficients import ANY
from crossbow.runtime.engine import Member
from crossbow.solver import Schedule
from tests.combinations import one_in, pairwise
from tests.runtime.simulation import Model, Simulation
from tests.support import FAST, blobs, context, perceptron, pictures, same_weights, training

TICKS = 20
DATA = blobs(examples=30, check=7)
RULES = pytest.mark.parametrize("rule", [SMA(), SMA(alpha=0.1, tau=3, base_momentum=0.3), SSGD()], ids=repr)
DEVICES = pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])

CLIP = 2.0
"""Some gradients of these runs are longer, some shorter."""
SOLVERS: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.9, "momentum_method": "nesterov"},
    "nesterov, l2": {"momentum": 0.9, "momentum_method": "nesterov", "weight_decay": 0.01},
    "l1": {"weight_decay": 0.02, "regularisation": "l1"},
    "momentum, l1": {"momentum": 0.9, "weight_decay": 0.02, "regularisation": "l1"},
    "nesterov, l1": {"momentum": 0.9, "momentum_method": "nesterov", "weight_decay": 0.02, "regularisation": "l1"},
    "clipped": {"clip_gradient_norm": CLIP},
    "clipped, momentum, l2": {"clip_gradient_norm": CLIP, "momentum": 0.9, "weight_decay": 0.01},
    "a cycle": {
        "momentum": 0.9,
        "minimum_momentum": 0.0,
        "policy": "clr",
        "step_size": 15,
        "maximum_learning_rate": 0.2,
        "weight_decay": 0.01,
    },
    "everything": {
        "clip_gradient_norm": CLIP,
        "momentum": 0.9,
        "minimum_momentum": 0.5,
        "momentum_method": "nesterov",
        "policy": "clr",
        "super_convergence": True,
        "step_size": 10,
        "annihilation_steps": 10,
        "maximum_learning_rate": 0.2,
        "weight_decay": 0.02,
        "regularisation": "l1",
    },
}
EVERY_SOLVER = pytest.mark.parametrize("values", SOLVERS.values(), ids=SOLVERS.keys())


def logistic(multipliers: tuple[float, float] = (1.0, 1.0), precision: str = "float64", **options: Any) -> Any:
    """A logistic regression: 18 weights and 3 biases, of which some are 0 at first."""
    layer = InnerProduct(
        number_of_outputs=3,
        weight_initialiser=Gaussian(std=0.5),
        bias_initialiser=Constant(value=0.0),
        weight_learning_rate_multiplier=multipliers[0],
        bias_learning_rate_multiplier=multipliers[1],
    )
    return context(training(layer), data=DATA, precision=precision, **options)


def base_model(running: ExecutionContext) -> Model:
    variables = running.variables
    return Model(variables["InnerProduct0.weights"].copy(), variables["InnerProduct0.bias"].copy())


def simulate(
    running: ExecutionContext, learners: int, multipliers: tuple[float, float] = (1.0, 1.0), ticks: int = TICKS
) -> Simulation:
    solver = running.solver
    schedule = Schedule(solver, running.engine.tasks_per_epoch)
    simulation = Simulation(
        DATA.train.images,
        DATA.train.labels,
        batch_size=running.model.batch_size,
        seed=running.system.seed,
        learners=learners,
        start=base_model(running),
        rate=lambda task: schedule(task).rate,
        decay=solver.weight_decay,
        nesterov=solver.momentum_method == "nesterov",
        l1=solver.regularisation == "l1",
        clip=solver.clip_gradient_norm,
        multipliers=multipliers,
        momentum_at=lambda task: schedule(task).momentum,
    )
    rule = running.model.rule
    for _ in range(ticks):
        if isinstance(rule, SMA):
            simulation.sma_tick(rule.strength(ANY, learners), rule.tau, rule.base_momentum)
        else:
            simulation.ssgd_tick()
    return simulation


def assert_close(received: Model, expected: Model, tolerance: float) -> None:
    np.testing.assert_allclose(received.weights, expected.weights, rtol=0, atol=tolerance)
    np.testing.assert_allclose(received.bias, expected.bias, rtol=0, atol=tolerance)


def replica(running: ExecutionContext, member: Member) -> Model:
    assert member.replica.weights is not None
    variables = running.engine.program.model.export(member.replica.weights)
    return Model(variables["InnerProduct0.weights"], variables["InnerProduct0.bias"])


@pytest.mark.slow
@one_in(4)
@pairwise
@RULES
@EVERY_SOLVER
@pytest.mark.parametrize(
    ("devices", "multipliers"), [("cpu", (1.0, 1.0)), ("cpu", (0.5, 2.0)), ("cpu:0/2,cpu:1/2", (0.5, 2.0))], ids=str
)
@pytest.mark.parametrize(
    ("kernels", "precision", "tolerance"),
    [
        pytest.param("reference", "float64", 1e-12, id="reference-float64"),
        pytest.param("onednn", "float32", 2e-5, id="onednn-float32", marks=FAST.marks),
    ],
)
def test_the_engine_is_the_simulation(
    rule: SMA | SSGD,
    devices: str,
    values: dict[str, Any],
    multipliers: tuple[float, float],
    kernels: str,
    precision: str,
    tolerance: float,
) -> None:
    learners = 2 * (devices.count(",") + 1)
    solver = SolverConf(**{"learning_rate": 0.1, **values})
    with logistic(multipliers, precision, kernels=kernels, rule=rule, devices=devices, solver=solver) as running:
        expected = simulate(running, learners, multipliers)
        running.train(TICKS * learners * rule.tau, TrainingUnit.TASKS)
        assert_close(base_model(running), expected.z, tolerance)
        if isinstance(rule, SMA):
            for member, weights in zip(running.engine.members, expected.w, strict=True):
                assert_close(replica(running, member), weights, tolerance)
        if solver.clip_gradient_norm is not None:
            gradients = TICKS * (learners * rule.tau if isinstance(rule, SMA) else 1)
            assert 0 < expected.clipped < gradients


@pytest.mark.parametrize("learners", [1, 3])
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=repr)
def test_any_number_of_learners(rule: SMA | SSGD, learners: int) -> None:
    solver = SolverConf(**{"learning_rate": 0.1, **SOLVERS["everything"]})
    with logistic((0.5, 2.0), rule=rule, learners=learners, solver=solver) as running:
        expected = simulate(running, learners, (0.5, 2.0))
        running.train(TICKS * learners, TrainingUnit.TASKS)
        assert_close(base_model(running), expected.z, 1e-12)


@DEVICES
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=repr)
def test_after_a_warm_up_every_step_down_restarts_the_learners(rule: SMA | SSGD, devices: str) -> None:
    """The steps that pass during the warm-up come all at once, with its end."""
    solver = SolverConf(
        learning_rate=0.2, policy="lsr", gamma=0.5, warmup_steps=16, step_values=(4, 8, 28), momentum=0.9
    )
    k = 2 * (devices.count(",") + 1)
    with logistic(rule=rule, devices=devices, solver=solver) as running:
        expected, restarts = simulate(running, k, ticks=0), []
        for tick in range(TICKS):
            if tick * k in (16, 28):
                expected.restart()
                restarts.append(tick)
            if isinstance(rule, SMA):
                expected.sma_tick(rule.strength(ANY, k), 1, 0.0)
            else:
                expected.ssgd_tick()
        assert len(restarts) == 2
        running.train(TICKS * k, TrainingUnit.TASKS)
        assert_close(base_model(running), expected.z, 1e-12)


# Clipping.


def assert_equal_weights(running: ExecutionContext, other: ExecutionContext, tolerance: float = 0.0) -> None:
    for name, value in running.variables.items():
        np.testing.assert_allclose(value, other.variables[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/3,cpu:1/3,cpu:2/3"])
def test_learners_that_send_clipped_gradients_are_one_learner_with_a_larger_batch(devices: str) -> None:
    """The mean is clipped, not each learner's gradient."""
    solver = SolverConf(learning_rate=0.1, momentum=0.9, weight_decay=0.01, clip_gradient_norm=0.3)
    options: dict[str, Any] = {"solver": solver, "rule": SSGD(), "precision": "float64", "data": blobs(60, 0)}
    each = 3 if devices == "cpu" else 1
    with (
        context(perceptron(), devices=devices, learners=each, batch_size=4, **options) as many,
        context(perceptron(), learners=1, batch_size=12, **options) as one,
        context(perceptron(), learners=1, batch_size=12, **{**options, "solver": SolverConf()}) as free,
    ):
        many.train(30, TrainingUnit.TASKS)
        for running in (one, free):
            running.train(10, TrainingUnit.TASKS)
        assert_equal_weights(many, one, 1e-12)
        assert not same_weights(one.variables, free.variables)


@RULES
@DEVICES
def test_a_limit_that_no_gradient_reaches_changes_nothing(rule: SMA | SSGD, devices: str) -> None:
    solver = SolverConf(learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    models = []
    for limit in (None, 1e9):
        conf = dataclasses.replace(solver, clip_gradient_norm=limit)
        with logistic(precision="float32", rule=rule, devices=devices, solver=conf) as running:
            running.train(24, TrainingUnit.TASKS)
            models.append(running.variables)
    assert same_weights(*models)


@pytest.mark.slow
@one_in(2)
@pairwise
@RULES
@DEVICES
@pytest.mark.parametrize("kernels", ["reference", FAST])
def test_the_same_seed_gives_the_same_bits(rule: SMA | SSGD, devices: str, kernels: str) -> None:
    solver = SolverConf(**{"learning_rate": 0.1, **SOLVERS["everything"], "clip_gradient_norm": 0.05})
    models = []
    for _ in range(3):
        with context(
            perceptron(hidden=50), rule=rule, devices=devices, solver=solver, kernels=kernels, learners=2
        ) as running:
            running.train(48, TrainingUnit.TASKS)
            models.append(running.variables)
    assert same_weights(models[0], models[1])
    assert same_weights(models[0], models[2])


# Multipliers of the learning rate.


def tasks_of(running: ExecutionContext) -> list[list[str]]:
    """What the calls of all task lists are, in order."""
    everyone: Any = running.engine.coordination.members()
    return [list(task.calls.names) for learner in everyone for task in learner.tasks.values()]


@RULES
@DEVICES
def test_equal_multipliers_cost_nothing(rule: SMA | SSGD, devices: str) -> None:
    with (
        logistic(rule=rule, devices=devices) as plain,
        logistic((3.0, 3.0), rule=rule, devices=devices) as equal,
        logistic((1.0, 3.0), rule=rule, devices=devices) as other,
    ):
        assert tasks_of(plain) == tasks_of(equal)
        assert tasks_of(plain) != tasks_of(other)


def convolutional(frozen: str) -> Any:
    """Two weighted operators, one of them frozen."""
    zero = {"weight_learning_rate_multiplier": 0.0, "bias_learning_rate_multiplier": 0}
    conv = Conv(number_of_outputs=5, kernel_size=3, **(zero if frozen == "Conv0" else {}))
    inner = InnerProduct(number_of_outputs=3, **(zero if frozen == "InnerProduct2" else {}))
    return training(conv, ReLU(), inner)


@one_in(2)
@RULES
@DEVICES
@pytest.mark.parametrize("kernels", ["reference", FAST])
@pytest.mark.parametrize("frozen", ["Conv0", "InnerProduct2"])
def test_a_frozen_operator_stays_as_it_is(rule: SMA | SSGD, devices: str, kernels: str, frozen: str) -> None:
    solver = SolverConf(learning_rate=0.1, momentum=0.9, weight_decay=0.1)
    with context(
        convolutional(frozen), data=pictures(), rule=rule, devices=devices, kernels=kernels, solver=solver
    ) as running:
        before = running.variables
        running.train(24, TrainingUnit.TASKS)
        after = running.variables
    for name, value in after.items():
        change = float(np.abs(value - before[name]).max())
        # The correction of SMA pulls replicas that are all alike: only rounding moves them.
        assert change < 1e-5 if name.startswith(frozen) else change > 1e-3, name


@pytest.mark.parametrize("kernels", ["reference", FAST])
def test_multipliers_of_several_operators(kernels: str) -> None:
    """By another way: of plain SGD with the rates 0.1 and 0.2, one multiplier at a time."""
    rates = {"Conv0.weights": 0.1, "Conv0.bias": 0.2, "InnerProduct2.weights": 0.3, "InnerProduct2.bias": 0.0}

    def network(multipliers: dict[str, float]) -> Any:
        named: dict[str, dict[str, float]] = {"Conv0": {}, "InnerProduct2": {}}
        for name, multiplier in multipliers.items():
            operator, variable = name.split(".")
            named[operator][f"{variable.replace('weights', 'weight')}_learning_rate_multiplier"] = multiplier
        conv = Conv(number_of_outputs=5, kernel_size=3, **named["Conv0"])
        return training(conv, ReLU(), InnerProduct(number_of_outputs=3, **named["InnerProduct2"]))

    def after_one_tick(multipliers: dict[str, float], rate: float) -> dict[str, Any]:
        solver = SolverConf(learning_rate=rate)
        with context(
            network(multipliers), data=pictures(), rule=SSGD(), learners=1, solver=solver, kernels=kernels
        ) as running:
            running.train(1, TrainingUnit.TASKS)
            return running.variables

    together = after_one_tick({name: rate * 10 for name, rate in rates.items()}, 0.1)
    for name, rate in rates.items():
        # One step from the same weights: every variable moves as if all had its rate.
        alone = after_one_tick(dict.fromkeys(rates, 1.0), rate or 1e-30)
        np.testing.assert_allclose(together[name], alone[name], rtol=0, atol=1e-6, err_msg=name)
