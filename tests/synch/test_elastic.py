"""The strength of elastic rules, which may change in steps."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow import SMA, ConfigurationError, SolverConf
from crossbow.solver import Pace
from crossbow.synch import (
    EASGD,
    PolyakRuppert,
    SynchronousEASGD,
)
from crossbow.synch.elastic import TimedAlphas


def test_alpha_is_1_by_k_but_a_half_for_one_learner() -> None:
    """With α = 1 one learner would not converge."""
    pace = Pace(0.1, 0.9)
    assert [SMA().strength(pace, k) for k in (1, 2, 4, 8)] == [0.5, 0.5, 0.25, 0.125]
    assert [SMA(alpha=0.3).strength(pace, k) for k in (1, 4)] == [0.3, 0.3]


@pytest.mark.parametrize("rule", [SMA, SynchronousEASGD, PolyakRuppert, EASGD])
def test_alpha_goes_by_steps_in_the_schedules_time(rule: Any) -> None:
    stepped = rule(alpha=0.5, alpha_steps=((1.5, 0.25), (4, 0.125)))
    times = (0, 1, 1.5, 2, 3.9, 4, 1000)
    found = [stepped.strength(Pace(0.1, 0.9, time=time), 2) for time in times]
    assert found == [0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]
    assert rule(alpha=0.5).strength(Pace(0.1, 0.9, time=1000), 2) == 0.5


def test_alpha_does_not_depend_on_a_variables_learning_rate() -> None:
    rule = SMA(alpha=0.5, alpha_steps=((1, 0.25),))
    pace = Pace(0.5, 0.75, 3, 2.0)
    assert pace.times(2.0) == pace._replace(rate=1.0)
    assert rule.strength(pace.times(2.0), 2) == 0.25


def test_what_steps_of_alpha_come_to_is_limited_by_the_number_of_learners() -> None:
    with pytest.raises(ConfigurationError, match=r"SMA: alpha_steps must be < 2/\(k \+ 1\) = 0.5 with k = 3 learners"):
        SMA(alpha=0.25, alpha_steps=((1, 0.125), (2, 0.5))).check_learners(3)


@pytest.mark.parametrize("rule", [SMA, SynchronousEASGD])
@pytest.mark.parametrize(("alpha", "learners"), [(1, 1), (0.7, 2), (2 / 3, 2), (0.5, 3), (0.1, 19)])
def test_a_strength_that_swings_is_refused(rule: Any, alpha: float, learners: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{rule.__name__}: alpha must be < 2/\(k \+ 1\) = .* with k = {learners} learners"
    ):
        rule(alpha=alpha).check_learners(learners)


@pytest.mark.parametrize(
    ("text", "value"), [("30:0.1", ((30.0, 0.1),)), ("1.5:0.5,1000000:0.25", ((1.5, 0.5), (1_000_000.0, 0.25)))]
)
def test_steps_of_alpha_as_text(text: str, value: Any) -> None:
    domain = TimedAlphas()
    assert domain.canonical(domain.read(text)) == value
    assert domain.write(value) == text


def test_alpha_may_be_zero_where_that_is_allowed() -> None:
    assert TimedAlphas(zero=True).canonical([[1, 0.0]]) == ((1, 0.0),)
    with pytest.raises(ValueError, match=r"0\.0"):
        TimedAlphas().canonical([[1, 0.0]])


def test_the_strength_depends_on_time_only_if_it_has_steps() -> None:
    assert SMA(alpha=0.5).strength_depends_on == frozenset()
    assert SMA(alpha_steps=((1, 0.25),)).strength_depends_on == {"time"}
    for steps, fields in (((), set()), (((1, 0.25),), {"time"})):
        assert SMA(alpha_steps=steps).merge(SolverConf(), Pace(0.1, 0.0), 2).depends_on == fields
