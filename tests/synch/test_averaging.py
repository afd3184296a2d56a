"""Averages of the learners' new weights."""

from __future__ import annotations

import pytest

from crossbow import SolverConf
from crossbow.solver import Pace, Update
from crossbow.synch import ModelAveraging, PolyakRuppert
from crossbow.synch.rule import NOTHING


def test_polyak_ruppert_may_stop_pulling() -> None:
    stepped = PolyakRuppert(alpha=0.5, alpha_steps=((3, 0.0),))
    assert [stepped.strength(Pace(0.1, 0.9, time=time), 2) for time in (2, 3)] == [0.5, 0.0]


def coefficients(update: Update) -> dict[str, dict[str, float]]:
    return {target: dict(terms) for target, terms in update.steps}


def test_model_averaging_replaces_z_and_replicas_by_the_mean() -> None:
    rule, pace = ModelAveraging(), Pace(0.1, 0.9, 5)
    assert coefficients(rule.merge(SolverConf(), pace, 3)) == {"base_next": {"mean": 1}}
    assert coefficients(rule.reply(SolverConf(), pace, 3)) == {"weights": {"base_next": 1}}
    assert rule.sent_vector == "weights"


def test_polyak_ruppert_is_the_mean_of_all_ticks() -> None:
    """Tick t counts as 1 / (t + 1); the initial weights are forgotten in the first tick."""
    rule, z = PolyakRuppert(), 100.0
    for tick, mean in enumerate((2.0, 4.0, 9.0)):
        terms = coefficients(rule.merge(SolverConf(), Pace(0.1, 0.0, tick), 2))["base_next"]
        z = terms["base"] * z + terms["mean"] * mean
    assert z == pytest.approx(5.0)


def test_polyak_ruppert_pulls_replicas_only_if_alpha_says_so() -> None:
    pace = Pace(0.1, 0.9, time=2)
    assert PolyakRuppert().reply(SolverConf(), pace, 2) is NOTHING
    pulled = coefficients(PolyakRuppert(alpha=0.25).reply(SolverConf(), pace, 2))
    assert pulled == {"weights": {"weights": 0.75, "base": 0.25}}
    later = PolyakRuppert(alpha_steps=((5, 0.5),)).reply(SolverConf(), pace, 2)
    assert coefficients(later) == {"weights": {"weights": 1, "base": 0}}
