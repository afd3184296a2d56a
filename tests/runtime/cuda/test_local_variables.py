"""Variables that every learner keeps to itself, on a GPU that is none: as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SMA, Dataflow, ExecutionContext, SolverConf
from crossbow.ops import InnerProduct, ReLU
from crossbow.runtime.memory import on_host
from crossbow.synch import EASGD, SSP, AsynchronousSGD, Gossip, Rule
from tests.combinations import covering, one_in
from tests.runtime.cuda import test_exchange as free
from tests.runtime.cuda import test_training as engine
from tests.runtime.test_local_variables import BARRIER, FREE, SOLVER, TASKS
from tests.support import SECONDS, training, within
from tests.support import context as small_context

pytestmark = [pytest.mark.slow]  # on the emulator; what they share with CPUs is tested there

BIASES: dict[str, Any] = {"local_variables": ("*.bias",), "solver": SOLVER}


def variables(running: ExecutionContext) -> list[dict[str, Any]]:
    """z's, and then every learner's."""
    layout = running.engine.program.model
    replicas = [layout.export(on_host(member.replica.weights)) for member in running.engine.members]
    return [running.variables, *replicas]


@one_in(4)
@pytest.mark.parametrize(("rule", "devices"), covering([*BARRIER, SMA(tau=3)], ["cuda:0", "cuda:0,cuda:1"], together=1))
def test_z_and_every_learner_are_those_of_the_cpu(rule: Rule, devices: str) -> None:
    cpu = "cpu" if devices == "cuda:0" else "cpu:0/2,cpu:1/2"
    with free.gpu(rule, devices=2), free.small(rule=rule, devices=devices, **BIASES) as running:
        running.train(36, TASKS)
        received = variables(running)
    with small_context(rule=rule, devices=cpu, **BIASES) as running:
        running.train(36, TASKS)
        expected = variables(running)
    for ours, theirs in zip(received, expected, strict=True):
        engine.assert_same(ours, theirs)
    first, second, *_ = [each["InnerProduct0.bias"] for each in received[1:]]
    assert not np.allclose(first, second)


@one_in(3)
@pytest.mark.parametrize("rule", FREE, ids=str)
def test_without_a_barrier_what_is_kept_differs_and_z_has_the_mean(rule: Rule) -> None:
    with free.gpu(rule), free.small(rule=rule, learners=3, **BIASES) as running:
        within(SECONDS, lambda: running.train(18, TASKS))
        z, *replicas = variables(running)
    biases = [each["InnerProduct0.bias"] for each in replicas]
    np.testing.assert_allclose(z["InnerProduct0.bias"], np.mean(biases, axis=0), atol=1e-6)
    assert all(not np.array_equal(bias, biases[0]) for bias in biases[1:])


@pytest.mark.parametrize("rule", [AsynchronousSGD(tau=2), EASGD(), Gossip(probability=1)], ids=str)
def test_one_learner_without_a_barrier_is_the_cpu_s(rule: Rule) -> None:
    with free.gpu(rule), free.small(rule=rule, learners=1, **BIASES) as running:
        running.train(12, TASKS)
        received = variables(running)
    with small_context(rule=rule, learners=1, **BIASES) as running:
        running.train(12, TASKS)
        for ours, theirs in zip(received, variables(running), strict=True):
            engine.assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("rule", "learners", "kept"),
    [(SMA(), 2, ("*.bias",)), (AsynchronousSGD(), 1, ("*.bias",)), (SSP(weight="1/staleness"), 1, ())],
    ids=str,
)
def test_with_learning_rates_of_their_own(rule: Rule, learners: int, kept: tuple[str, ...]) -> None:
    """Which change with every tick."""
    solver = SolverConf(learning_rate=0.1, policy="inv", gamma=0.1, power=0.7, clip_gradient_norm=1.0, momentum=0.5)
    common: dict[str, Any] = {"rule": rule, "learners": learners, "solver": solver, "local_variables": kept}
    with free.gpu(rule), free.small(dataflow=with_multipliers(), **common) as running:
        running.train(12, TASKS)
        received = variables(running)
    with small_context(dataflow=with_multipliers(), **common) as running:
        running.train(12, TASKS)
        for ours, theirs in zip(received, variables(running), strict=True):
            engine.assert_same(ours, theirs)


def with_multipliers() -> Dataflow:
    first = InnerProduct(number_of_outputs=8, weight_learning_rate_multiplier=0.5, bias_learning_rate_multiplier=2.0)
    return training(first, ReLU(), InnerProduct(number_of_outputs=3, bias_learning_rate_multiplier=2.0))
