"""When learners' speeds are told, with learners that are made up."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from crossbow.runtime.speeds import CHANGED_WINDOWS, WARMING_TASKS, WINDOW_SECONDS, WINDOW_TASKS, Regrouping, Speeds
from crossbow.synch.grouping import groups_by_speed


def rounds(measured: Speeds, rates: Sequence[float], number: int) -> list[tuple[float, ...]]:
    """So many tasks of each learner, at so many tasks/s: what is told meanwhile."""
    told = []
    for _ in range(number):
        for learner, rate in enumerate(rates):
            measured.add(learner, 1 / rate)
            if (news := measured.news()) is not None:
                told.append(news)
    return told


def window(measured: Speeds, *rates: float) -> list[tuple[float, ...]]:
    assert max(rates) * WINDOW_SECONDS < WINDOW_TASKS  # so many tasks are long enough
    return rounds(measured, rates, WINDOW_TASKS)


def measured(*rates: float) -> Speeds:
    """That have been told once."""
    made = Speeds(len(rates))
    rounds(made, rates, WARMING_TASKS)
    assert window(made, *rates) == [pytest.approx(rates)]
    return made


def test_the_first_tasks_do_not_count() -> None:
    made = Speeds(2)
    assert rounds(made, (0.1, 0.2), WARMING_TASKS) == []
    assert window(made, 20.0, 40.0) == [pytest.approx((20, 40))]


@pytest.mark.parametrize(
    ("rates", "tasks"), [((10.0, 20.0), WINDOW_TASKS), ((1000.0, 4000.0), round(4000 * WINDOW_SECONDS))]
)
def test_every_learner_does_enough_tasks_for_long_enough(rates: tuple[float, ...], tasks: int) -> None:
    made = Speeds(2)
    rounds(made, rates, WARMING_TASKS)
    assert rounds(made, rates, tasks - 2) == []
    assert len(rounds(made, rates, 4)) == 1


def test_learners_need_not_do_equally_many() -> None:
    made = Speeds(2)
    for _ in range(WARMING_TASKS + WINDOW_TASKS):
        made.add(0, 1 / 50)
        for _ in range(3):
            made.add(1, 1 / 150)
    assert made.news() == pytest.approx((50, 150))


def test_what_stays_is_told_once() -> None:
    """Noise, and a machine on which everything becomes slower, are no change."""
    made, generator = measured(40.0, 80.0, 48.0), np.random.default_rng(0)
    for part in (1.0, 0.3):
        for _ in range(20):
            noise = np.exp(0.05 * generator.standard_normal(3))
            assert window(made, *(np.array([40, 80, 48]) * part * noise)) == []


def test_speeds_on_the_border_of_a_group_do_not_swing() -> None:
    made = measured(40.0, 49.0)
    assert groups_by_speed((40.0, 49.0)) != groups_by_speed((40.0, 51.0))
    for _ in range(20):
        assert window(made, 40.0, 51.0) == []
    for _ in range(20):
        assert window(made, 40.0, 49.0) == []


def test_a_change_for_good_is_told() -> None:
    made = measured(40.0, 40.0)
    for _ in range(CHANGED_WINDOWS - 1):
        assert window(made, 40.0, 20.0) == []
    assert window(made, 40.0, 20.0) == [pytest.approx((40, 20))]
    for _ in range(20):
        assert window(made, 40.0, 20.0) == []
    told = [news for _ in range(CHANGED_WINDOWS) for news in window(made, 40.0, 40.0)]
    assert told == [pytest.approx((40, 40))]


def test_a_change_that_is_over_soon_is_not() -> None:
    made = measured(40.0, 40.0)
    for _ in range(10):
        for _ in range(CHANGED_WINDOWS - 1):
            assert window(made, 40.0, 20.0) == []
        assert window(made, 40.0, 40.0) == []


def test_measurements_are_restored() -> None:
    """In the middle of a window, the second that differs; then the third is told, and not yet asked for."""
    made, other = measured(40.0, 40.0), Speeds(2)
    for rates in ((40.0, 20.0), (40.0, 20.0)):
        window(made, *rates)
    rounds(made, (40.0, 20.0), 3)
    other.restore(json.loads(json.dumps(made.state())))
    for each in (made, other):
        assert rounds(each, (40.0, 20.0), WINDOW_TASKS - 4) == []
        each.add(0, 1 / 40)
        each.add(1, 1 / 20)
    first = {"tasks": [-WARMING_TASKS] * 2, "seconds": [0.0] * 2, "known": None, "changed": 0, "news": None}
    assert Speeds(2).state() == first
    last = Speeds(2)
    last.restore(json.loads(json.dumps(other.state())))
    assert made.news() == other.news() == last.news() == pytest.approx((40, 20))
    assert last.news() is None


def test_what_is_said() -> None:
    said = str(Regrouping(((0, 2), (1,)), (81.25, 12.5, 80.0)))
    assert said == "groups 0,2/1: learners 0 to 2 do 81.2, 12.5, 80.0 tasks/s"
