"""The learning-rate range test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from crossbow import ConfigurationError, ModelConf, RangeTest, Sequential, SolverConf, SystemConf, find_learning_rate
from crossbow.data import digits
from crossbow.ops import InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.scripts import ModelScript
from models import lenet, logistic_regression

SYSTEM = SystemConf(learners_per_device=2, threads_per_learner=1)


def network() -> Sequential:
    return Sequential(InnerProduct(32), ReLU(), InnerProduct(10), SoftMax(), SoftMaxLoss())


def find(**options: Any) -> RangeTest:
    given: dict[str, Any] = {"data": digits(), "model": ModelConf(batch_size=16), "system": SYSTEM, **options}
    return find_learning_rate(network(), **given)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [SolverConf(momentum=0.9), SolverConf(method="adam")], ids=["sgd", "adam"])
def test_the_suggestion_trains(solver: SolverConf) -> None:
    found = find(solver=solver, tasks=120)
    assert found.suggestion is not None
    assert found.least is not None
    assert 1e-5 < found.suggestion == found.least / 3
    ratios = np.diff(np.log(found.rates))
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-9)  # each tick by the same factor
    assert found.rates[0] == 1e-6
    assert len(found.rates) <= 60  # ticks of two tasks


def test_it_ends_when_training_diverges() -> None:
    found = find(highest=1e6, tasks=100)
    assert found.diverged
    assert len(found.rates) < 50
    assert all(map(math.isfinite, found.losses))


def test_a_schedule_is_ignored() -> None:
    solver = SolverConf(learning_rate=0.5, policy="step", gamma=0.5, step_size=3, warmup_steps=2, momentum=0.5)
    first, second = find(solver=solver, tasks=20), find(solver=SolverConf(momentum=0.5), tasks=20)
    assert first == second


def points(losses: list[float]) -> RangeTest:
    return RangeTest(tuple(10.0 ** (number / 4 - 5) for number in range(len(losses))), tuple(losses), diverged=False)


def test_the_mean_has_no_bias() -> None:
    np.testing.assert_allclose(points([2.0] * 9).smoothed, 2.0)
    assert points([1.0, 0.0]).smoothed == pytest.approx((1.0, 0.09 / 0.19))


def test_a_third_of_the_best_rate_is_suggested() -> None:
    """A steep fall in the noise of the beginning, at 11; the smallest loss at 39."""
    losses = [6.0] * 11 + [3.0] + [6.0] * 3 + [5.0, 4.0, 3.0] + [2.0] * 22 + [5.0] * 5
    found = points(losses)
    assert found.least == found.rates[39]
    assert found.suggestion == found.least / 3
    assert found.divergence in found.rates[41:43]


def test_a_network_that_has_died_has_diverged() -> None:
    """The loss rises from 1.3 to that of chance, 2.3, much less than it had fallen."""
    found = points([6.0] * 15 + [1.3] * 40 + [2.3] * 20)
    assert found.divergence in found.rates[56:63]
    assert points([6.0] * 15 + [1.3] * 40 + [1.5] * 20).divergence is None
    assert points([6.0] * 15 + [0.1] * 60 + [0.3] * 20).divergence is None, "three times as large, but only noise"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "seed"),
    [(lenet.SCRIPT, 1), (logistic_regression.SCRIPT, 1), (logistic_regression.SCRIPT, 2)],
    ids=["lenet", "logistic regression", "another seed"],
)
def test_the_suggestion_is_near_the_rate_of_the_script(script: ModelScript, seed: int) -> None:
    _, confs, dataflow = script.network(["--learners", "1", "--threads-per-learner", "1", "--seed", str(seed)])
    found = find_learning_rate(
        [dataflow, None], data=digits(), model=confs.model, solver=confs.solver, system=confs.system
    )
    assert found.diverged
    assert found.suggestion is not None
    assert 1 / 10 < found.suggestion / script.defaults.solver.learning_rate < 10


@pytest.mark.parametrize("losses", [[], [1.0, 0.5], [1.0] * 20, [1.0 + number / 9 for number in range(20)]])
def test_nothing_is_suggested_without_a_fall(losses: list[float]) -> None:
    found = points(losses)
    assert found.suggestion is None
    assert found.least is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lowest": 0}, "lowest must be a finite number > 0. Received: 0"),
        ({"highest": math.inf}, "highest must be a finite number > 0. Received: inf"),
        ({"lowest": "small"}, "lowest must be a finite number > 0. Received: 'small'"),
        ({"lowest": 2, "highest": 1}, "lowest must be less than highest. Received: 2 and 1"),
        ({"tasks": 1}, "tasks must be an integer ≥ 2. Received: 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find(**options)
