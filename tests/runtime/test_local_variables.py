"""Variables that every learner keeps to itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, ExecutionContext, SolverConf, TrainingUnit
from crossbow.synch import (
    EASGD,
    SSP,
    AsynchronousSGD,
    Default,
    DiLoCo,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PartiallySynchronous,
    PolyakRuppert,
    Rule,
    SynchronousEASGD,
    WeedOut,
)
from crossbow.types import ConfigurationError
from tests.combinations import in_turn, one_in, pairwise
from tests.support import KERNELS, SECONDS, context, engine_of, within

TASKS = TrainingUnit.TASKS
DEVICES = pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
SOLVER = SolverConf(learning_rate=0.1, momentum=0.5, clip_gradient_norm=1.0)
BARRIER = [SMA(), SMA(tau=2, base_momentum=0.3), SynchronousEASGD(), ModelAveraging(), PolyakRuppert(alpha=0.3)]
BARRIER += [DiLoCo(tau=2)]
FREE = [
    AsynchronousSGD(),
    AsynchronousSGD(tau=3),
    PartiallySynchronous(2),
    WeedOut(),
    Default(),
    EASGD(),
    Gossip(probability=1),
]


def learners_variables(running: ExecutionContext) -> list[dict[str, Any]]:
    layout = running.engine.program.model
    return [layout.export(member.replica.weights) for member in running.engine.members]


@one_in(3)
@pairwise
@DEVICES
@KERNELS
@pytest.mark.parametrize("rule", [*BARRIER, *FREE], ids=str)
def test_what_is_kept_differs_between_learners_and_z_has_the_mean(rule: Rule, kernels: str, devices: str) -> None:
    options: dict[str, Any] = {"learners": 2, "devices": devices, "kernels": kernels, "solver": SOLVER, "rule": rule}
    with context(local_variables=("*.bias",), **options) as running:
        within(SECONDS, lambda: running.train(24, TASKS))
        before = learners_variables(running)
        within(SECONDS, lambda: running.train(12 * len(before), TASKS))
        after, z = learners_variables(running), running.variables
    biases = [each["InnerProduct0.bias"] for each in after]
    assert all(not np.array_equal(bias, biases[0]) for bias in biases[1:])
    if rule in FREE:
        np.testing.assert_allclose(z["InnerProduct0.bias"], np.mean(biases, axis=0), atol=1e-6)
    if isinstance(rule, ModelAveraging | DiLoCo):
        np.testing.assert_allclose(z["InnerProduct0.bias"], np.mean(biases, axis=0), atol=1e-6)
        for each in after:
            assert np.array_equal(each["InnerProduct0.weights"], z["InnerProduct0.weights"])


@in_turn
@DEVICES
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=3), SynchronousEASGD(alpha=0.1), ModelAveraging(), *FREE], ids=str)
def test_where_everything_is_kept_learners_train_alone(rule: Rule, devices: str) -> None:
    """As under Polyak-Ruppert averaging without correction, whose learners know nothing of each other. Tasks are dealt
    in turn to a single learner only, so without a barrier there is one."""
    results = []
    learners = 1 if rule in FREE else 2
    for rule_now, kept in ((rule, ("*",)), (PolyakRuppert(tau=rule.tau), ())):
        with context(
            rule=rule_now,
            local_variables=kept,
            learners=learners,
            devices="cpu" if rule in FREE else devices,
            solver=SOLVER,
        ) as running:
            running.train(36, TASKS)
            results.append([member.replica.weights.copy() for member in running.engine.members])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_sma_s_z_has_the_mean_before_the_step() -> None:
    with context(rule=SMA(alpha=0.2), local_variables=["InnerProduct0.bias"], learners=3, solver=SOLVER) as running:
        running.train(9, TASKS)
        before = np.mean([each["InnerProduct0.bias"] for each in learners_variables(running)], axis=0)
        running.train(3, TASKS)
        np.testing.assert_allclose(running.variables["InnerProduct0.bias"], before, atol=1e-6)
        assert running.engine.parts.setting.model.local_variables == ("InnerProduct0.bias",)


def test_a_restart_gives_everybody_the_mean() -> None:
    solver = SolverConf(learning_rate=0.1, policy="step", gamma=0.5, step_size=12)
    with context(rule=ModelAveraging(), local_variables=("*.bias",), learners=2, solver=solver) as running:
        running.train(12, TASKS)
        engine_of(running).recovery.restart()
        first, second = learners_variables(running)
        assert all(np.array_equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("rule", [SSGD(), Hogwild(), SSP(), Grouping(), AsynchronousSGD(sends="gradient")], ids=str)
def test_learners_that_do_not_step_keep_nothing(rule: Rule) -> None:
    with pytest.raises(
        ConfigurationError, match=r"local_variables must be \(\) under a rule by which learners send grad"
    ):
        context(rule=rule, local_variables=("*.bias",))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            ("conv1.bias",),
            "local_variables must be of InnerProduct0.weights, .*. Received: local_variables='conv1.bias'",
        ),
        ("*.bias", "local_variables must be a tuple of names or patterns"),
        ((1,), "local_variables must be a tuple of names or patterns"),
    ],
)
def test_names_that_are_none(names: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        context(local_variables=names)
