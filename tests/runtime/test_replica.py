"""The vectors of learners and base models: those that the rule needs, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf
from crossbow.compile import Program
from crossbow.ops import BatchNorm, InnerProduct
from crossbow.runtime.replica import BaseModel, Replica, narrow_vectors, new_base_model, new_replica
from crossbow.synch import SSP, AsynchronousSGD, Gossip, Hogwild, Rule
from tests.support import context, training

PLAIN, MOMENTUM = SolverConf(), SolverConf(momentum=0.9)
ADAM, ADAGRAD = SolverConf(method="adam"), SolverConf(method="adagrad")
MOMENTS = {"velocity", "second_moment"}


@pytest.fixture(scope="module")
def program() -> Program:
    """With weights and running statistics."""
    with context(training(InnerProduct(number_of_outputs=3), BatchNorm())) as running:
        return running.engine.program


def names(vectors: Replica | BaseModel) -> set[str]:
    return {name for name, value in vars(vectors).items() if value is not None}


@pytest.mark.parametrize(
    ("rule", "solver", "expected"),
    [
        (SMA(), PLAIN, {"weights", "gradient"}),
        (SMA(), MOMENTUM, {"weights", "gradient", "velocity"}),
        (SSGD(), MOMENTUM, {"gradient"}),
        (AsynchronousSGD(), PLAIN, {"weights", "gradient", "taken"}),
        (SSP(), MOMENTUM, {"weights", "gradient"}),
        (Hogwild(), MOMENTUM, {"gradient", "velocity"}),
        (Gossip(), PLAIN, {"weights", "gradient", "received"}),
        (SMA(), ADAM, {"weights", "gradient", *MOMENTS, "step_count"}),
        (SMA(), ADAGRAD, {"weights", "gradient", "second_moment"}),
        (SSP(), ADAM, {"weights", "gradient"}),
        (Hogwild(), ADAM, {"gradient", *MOMENTS, "step_count"}),
    ],
)
def test_a_learner_has_the_vectors_of_its_rule(
    program: Program, rule: Rule, solver: SolverConf, expected: set[str]
) -> None:
    replica = new_replica(program, rule, solver)
    assert names(replica) == {*expected, "statistics"}
    assert replica.vectors().keys() == expected
    vectors = [vector for name, vector in replica.vectors().items() if name != "step_count"]
    if replica.step_count is not None:
        assert (replica.step_count.tolist(), replica.step_count.dtype) == ([0.0], np.float64)
    for vector in vectors:
        assert (vector.size, vector.dtype) == (program.model.elements, program.model.dtype)
        assert not vector.any()
    assert not any(np.shares_memory(a, b) for i, a in enumerate(vectors) for b in vectors[:i])


@pytest.mark.parametrize("rule", [SMA(), SSP()], ids=str)
def test_statistics_have_two_buffers_under_a_barrier(program: Program, rule: Rule) -> None:
    first, second = new_replica(program, rule, PLAIN).statistics
    assert first.size == program.statistics.elements > 0
    assert (first is second) == isinstance(rule, SSP)


@pytest.mark.parametrize(
    ("rule", "solver", "devices", "expected"),
    [
        (SMA(), MOMENTUM, 1, set()),
        (SMA(base_momentum=0.5), PLAIN, 2, {"mean", "statistics_mean"}),
        (SSGD(), PLAIN, 1, set()),
        (SSGD(), MOMENTUM, 1, {"velocity"}),
        (SSGD(), MOMENTUM, 2, {"velocity", "mean", "statistics_mean"}),
        (SSP(), MOMENTUM, 1, {"velocity"}),
        (SMA(), ADAM, 1, set()),
        (SSGD(), ADAM, 1, {*MOMENTS, "step_count"}),
        (SSGD(), ADAGRAD, 2, {"second_moment", "mean", "statistics_mean"}),
        (SSP(), ADAM, 1, {*MOMENTS, "step_count"}),
    ],
)
def test_a_base_model_has_the_vectors_of_its_rule(
    program: Program, rule: Rule, solver: SolverConf, devices: int, expected: set[str]
) -> None:
    base = new_base_model(program, rule, solver, several=devices > 1)
    assert names(base) == {*expected, "buffers", "statistics"}
    assert (base.buffers[0] is base.buffers[1]) == isinstance(rule, SSP)
    assert (base.statistics[0] is base.statistics[1]) == isinstance(rule, SSP)
    assert base.current(4) is base.buffers[0]
    assert base.current(5) is base.buffers[1]


def test_every_learner_counts_the_steps_of_its_part_of_z(program: Program) -> None:
    base = new_base_model(program, SSGD(), ADAM, several=False, learners=3)
    assert base.step_count is not None
    assert base.step_count.tolist() == [0.0, 0.0, 0.0]
    assert base.vectors(0)["base_step_count"] is base.step_count
    assert base.vectors(0)["base_second_moment"] is base.second_moment


@pytest.mark.parametrize("parity", [0, 1])
def test_the_next_z_overwrites_the_previous_one(program: Program, parity: int) -> None:
    base = new_base_model(program, SSGD(), MOMENTUM, several=True)
    named: dict[str, Any] = base.vectors(parity)
    assert named["base"] is base.buffers[parity]
    assert named["base_next"] is named["base_previous"] is base.buffers[1 - parity]
    assert (named["base_velocity"], named["mean"]) == (base.velocity, base.mean) or named["mean"] is base.mean
    alone = new_base_model(program, SMA(), PLAIN, several=False)
    assert alone.vectors(0).keys() == {"base", "base_next", "base_previous"}


def test_a_device_allocates_its_own_memory(program: Program) -> None:
    asked: list[int] = []

    def zeros(nbytes: int) -> Any:
        asked.append(nbytes)
        return np.zeros(nbytes, np.uint8)

    new_replica(program, SMA(), MOMENTUM, zeros)
    item = program.model.dtype.itemsize
    assert len(asked) == 2  # weights, and statistics
    assert asked[0] >= 3 * program.model.elements * item
    assert asked[1] >= 2 * program.statistics.elements * item


def test_without_numbers_of_16_bits_there_are_no_more_vectors(program: Program) -> None:
    assert narrow_vectors(program, None, lambda nbytes: np.zeros(nbytes, np.uint8)) == {}
