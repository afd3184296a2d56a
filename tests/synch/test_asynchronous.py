"""Asynchronous rules: weights of contributions, and which learners may start."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow import ConfigurationError, SolverConf
from crossbow.solver import Pace, Update
from crossbow.synch import (
    EASGD,
    SSP,
    AsynchronousSGD,
    Default,
    Hogwild,
    PartiallySynchronous,
    WeedOut,
)
from crossbow.synch.asynchronous import STALENESS, Weight
from crossbow.synch.rule import Arrival


def test_a_gradient_is_sent_at_every_step() -> None:
    with pytest.raises(ConfigurationError, match="tau must be 1: a gradient is sent at every step"):
        AsynchronousSGD(sends="gradient", tau=2)
    assert AsynchronousSGD(sends="delta", tau=2).tau == 2


@pytest.mark.parametrize(
    ("weight", "expected"),
    [(1, [1, 1]), (0.25, [0.25, 0.25]), ("1/4", [0.25, 0.25]), ("1/staleness", [1, 0.2]), ("staleness", [1, 0.2])],
)
@pytest.mark.parametrize("rule", [AsynchronousSGD, SSP])
def test_asynchronous_weights(rule: Any, weight: Any, expected: list[float]) -> None:
    assert [rule(weight=weight).omega(Arrival(0, 3, staleness=y)) for y in (1, 5)] == expected


@pytest.mark.parametrize("rule", [AsynchronousSGD, SSP])
def test_no_number_weighs_gradients_whose_size_does_not_count(rule: Any) -> None:
    sends = {"sends": "gradient"} if rule is AsynchronousSGD else {}
    adam = SolverConf(method="adam")
    with pytest.raises(ConfigurationError, match="weight must be 1 or '1/staleness' with method='adam'"):
        rule(weight=0.5, **sends).check_solver(adam)
    for weight in (1, STALENESS):
        rule(weight=weight, **sends).check_solver(adam)
    rule(weight=0.5, **sends).check_solver(SolverConf())
    AsynchronousSGD(weight=0.5).check_solver(adam)


def test_weed_out_looks_at_the_last_finishers() -> None:
    """Two learners, N = 3: until three have finished all are merged; then those among the last three."""
    omega = WeedOut(window=3).omega
    assert omega(Arrival(0, 2)) == omega(Arrival(0, 2, finishers=(1, 1))) == 1
    assert omega(Arrival(0, 2, finishers=(1, 1, 1))) == 0
    assert omega(Arrival(0, 2, finishers=(0, 1, 1))) == 1
    assert [WeedOut(window=3).remembers(k) for k in (1, 3, 5)] == [3, 3, 5]


def test_in_a_barrier_all_wait_though_the_drift_has_become_small() -> None:
    """m = 2: learner 0 was two ahead of learner 2 and waits, so learner 2 waits as well, and then learner 1."""
    rule = PartiallySynchronous(max_advance=2)
    assert not any(rule.may_start([2, 1, 1], {0, 2}, learner) for learner in (0, 2))
    assert all(rule.may_start([2, 2, 1], {0, 1, 2}, learner) for learner in (0, 1, 2))


def test_a_learner_is_at_most_bound_tasks_ahead_when_it_begins_one() -> None:
    assert [SSP(bound=2).may_start([clock, 3, 5], {0}, 0) for clock in (3, 4, 5, 6)] == [True, True, True, False]
    assert not SSP().may_start([1, 0], {0}, 0)


def test_learners_go_on_together_once_all_have_contributed() -> None:
    assert not Default().may_start([1, 1, 0], {0, 1}, 0)
    assert Default().may_start([1, 1, 1], {0, 1, 2}, 0)
    assert Hogwild().may_start([9, 0, 0], {0}, 0)


def values(update: Update, **vectors: float) -> dict[str, float]:
    """The vectors after an update, whose steps are applied one after another."""
    for target, terms in update.steps:
        vectors[target] = sum(factor * vectors[name] for name, factor in terms.items())
    return vectors


PACE, FRESH = Pace(0.5, 0.0), Arrival(0, 2)


def test_a_delta_moves_z_by_what_the_learner_has_moved() -> None:
    merge = AsynchronousSGD(weight=0.25).merge(SolverConf(), PACE, FRESH)
    made = values(merge, base=10.0, weights=7.0, taken=3.0)
    assert made == {"base": 11.0, "weights": 7.0, "taken": 3.0}
    assert values(AsynchronousSGD().reply(SolverConf(), PACE), **made) == {"base": 11, "weights": 11, "taken": 11}


def test_a_gradient_steps_z() -> None:
    """ω weighs the gradient, and not the weight decay."""
    solver = SolverConf(weight_decay=0.5)
    for rule, omega in ((SSP(weight=0.25), 0.25), (SSP(), 1.0)):
        made = values(rule.merge(solver, PACE, FRESH), base=8.0, gradient=4.0)
        assert made["base"] == 8 - 0.5 * (omega * 4 + 0.5 * 8)
        assert values(rule.reply(solver, PACE), base=5.0, weights=1.0) == {"base": 5.0, "weights": 5.0}
    assert values(Hogwild().merge(SolverConf(), PACE, FRESH), base=8.0, gradient=4.0)["base"] == 6.0


def test_a_learner_and_z_move_towards_each_other() -> None:
    rule = EASGD(alpha=0.25)
    made = values(rule.merge(SolverConf(), PACE, FRESH), base=2.0, weights=10.0, gradient=99.0)
    assert (made["base"], values(rule.reply(SolverConf(), PACE), **made)["weights"]) == (4.0, 8.0)


@pytest.mark.parametrize(
    ("text", "value"), [("1/4", 0.25), ("0.5", 0.5), ("1", 1.0), ("staleness", STALENESS), (STALENESS, STALENESS)]
)
def test_weights_of_contributions_as_text(text: str, value: float | str) -> None:
    domain = Weight()
    assert domain.canonical(domain.read(text)) == value
