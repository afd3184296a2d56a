"""The auto-tuner's decisions, with machines that are made up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from crossbow.runtime import tuner
from crossbow.runtime.tuner import (
    CHANGED_WINDOWS,
    FEWEST_PAIRS,
    MOST_PAIRS,
    REFERENCE_WINDOWS,
    Comparison,
    Decision,
    Retuning,
    Tuner,
)

Machine = Callable[[int], float]
"""Images/s with so many learners."""


def machine(rates: Mapping[int, float], noise: float = 0.0, seed: int = 0) -> Machine:
    """That many images/s, times a factor that is drawn for each window; as many as with the most, for more."""
    generator = np.random.default_rng(seed)
    return lambda learners: rates[min(learners, max(rates))] * math.exp(noise * generator.standard_normal())


def settle(searching: Tuner, rate: Machine, most: int = 200) -> int:
    """Windows until it has settled."""
    for windows in range(most):
        if searching.settled:
            return windows
        searching.add(rate(searching.learners))
    raise AssertionError(f"not settled after {most} windows: {searching}")


# Comparisons


def test_pairs_of_windows_in_changing_order() -> None:
    comparison, order = Comparison(2, 3), []
    for _ in range(8):
        order.append(comparison.next)
        comparison.add(1.0)
    assert order == [2, 3, 3, 2, 2, 3, 3, 2]


def compare(*pairs: tuple[float, float]) -> Decision | None:
    """The decision after windows with these rates, (fewer, more) of each pair."""
    comparison = Comparison(2, 3)
    for fewer, more in pairs:
        for _ in range(2):
            comparison.add(fewer if comparison.next == 2 else more)
    return comparison.decision()


def test_it_takes_three_pairs_to_tell() -> None:
    assert compare((100, 200), (100, 200)) is None
    decision = compare(*[(100, 200)] * FEWEST_PAIRS)
    assert decision == Decision(2, 3, 3, "more than 1.01", 3, *[pytest.approx(2.0)] * 3, 100, 200)
    assert str(decision) == (
        "3 learners: 3 are 2.000 times as fast as 2, with 200 and 100 images/s "
        "(2.000 to 2.000, 3 pairs of windows): more than 1.01"
    )


def test_several_devices_have_as_many_learners_each() -> None:
    assert str(Decision(2, 3, 2, "not 3", devices=4)) == "2 learners on each of 4 devices: not 3"
    told = Retuning(2, 180, (100,), devices=4)
    assert str(told).startswith(
        "2 learners on each of 4 devices: compared again, for the last windows had 100 images/s"
    )


def test_the_rates_are_the_means_of_the_windows() -> None:
    decision = compare((1000, 1500), (1100, 1800), (1200, 1620))
    assert decision is not None
    assert (decision.fewer_images_per_second, decision.more_images_per_second) == (1100, 1640)
    assert "with 1,640 and 1,100 images/s" in str(decision)


def test_the_bound_worked_by_hand() -> None:
    """Logarithms of the ratios 0.1, 0.2 and 0.3: mean 0.2, deviation 0.1, and t with two degrees of freedom is 2.920;
    2.920 · 0.1 / √3 = 0.16859."""
    decision = compare(*[(1.0, math.exp(x)) for x in (0.1, 0.2, 0.3)])
    assert decision is not None
    assert decision.chosen == 3
    assert math.log(decision.ratio) == pytest.approx(0.2)
    assert math.log(decision.low) == pytest.approx(0.2 - 0.16859, abs=1e-5)
    assert math.log(decision.high) == pytest.approx(0.2 + 0.16859, abs=1e-5)


@pytest.mark.parametrize(("more", "chosen"), [(1.5, 3), (0.5, 2), (1.0, 2), (1.005, 2)])
def test_more_learners_have_to_be_better(more: float, chosen: int) -> None:
    decision = compare(*[(1.0, more)] * FEWEST_PAIRS)
    assert decision is not None
    assert decision.chosen == chosen


@pytest.mark.parametrize(("middle", "chosen"), [(1.1, 3), (1.0, 2)])
def test_what_cannot_be_told_is_decided_by_the_mean(middle: float, chosen: int) -> None:
    noise = [(1.0, middle * math.exp(0.5 * (-1) ** i)) for i in range(MOST_PAIRS)]
    assert compare(*noise[:-1]) is None
    decision = compare(*noise)
    assert decision is not None
    assert (decision.chosen, decision.pairs) == (chosen, MOST_PAIRS)
    assert "too near to tell" in str(decision)


def test_what_the_rest_of_the_machine_does_meets_both() -> None:
    """The machine becomes slower all the time, by a tenth with every window: twice as fast is still seen as that."""
    comparison, speed = Comparison(1, 2), 1.0
    for _ in range(4 * FEWEST_PAIRS):
        comparison.add(speed * comparison.next)
        speed *= 0.9
    decision = comparison.decision()
    assert decision is not None
    assert decision.chosen == 2
    assert decision.ratio == pytest.approx(2.0)


# The search

LINEAR = {k: 100.0 * k for k in range(1, 6)}


@pytest.mark.parametrize(
    ("rates", "start", "best"),
    [
        (LINEAR, 1, 5),
        (LINEAR, 2, 5),
        ({1: 100, 2: 180, 3: 150}, 2, 2),
        ({1: 100, 2: 180, 3: 150}, 1, 2),
        ({1: 100, 2: 90, 3: 80, 4: 70}, 4, 1),
        ({1: 100, 2: 100}, 2, 1),
        ({1: 100, 2: 190, 3: 260, 4: 262, 5: 262}, 4, 3),
    ],
)
def test_the_best_number_is_found(rates: Mapping[int, float], start: int, best: int) -> None:
    decisions: list[Decision] = []
    searching = Tuner(start, on_decision=decisions.append)
    windows = settle(searching, machine(rates))
    assert searching.learners == searching.best == best
    assert windows == 2 * FEWEST_PAIRS * len(decisions)
    assert decisions[-1].chosen == best


def test_the_numbers_that_are_wanted() -> None:
    searching = Tuner(2)
    assert searching.compared == {2, 3}
    while searching.best == 2 and searching.compared == {2, 3}:
        searching.add({2: 180, 3: 150}[searching.learners])
    assert searching.compared == {1, 2}
    settle(searching, machine({1: 100, 2: 180}))
    assert searching.compared == {2}


def test_nothing_is_compared_twice() -> None:
    decisions: list[Decision] = []
    settle(Tuner(2, on_decision=decisions.append), machine({1: 100, 2: 150, 3: 200, 4: 180}))
    assert [(d.fewer, d.more, d.chosen) for d in decisions] == [(2, 3, 3), (3, 4, 3)]


@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_with_noise_what_is_found_is_nearly_the_best(noise: float) -> None:
    """Over 200 machines: the number that is chosen is at least 0.95 of the best in all but a few."""
    rates = {1: 100.0, 2: 170.0, 3: 176.0, 4: 165.0}
    reached = []
    for seed in range(200):
        searching = Tuner(2)
        settle(searching, machine(rates, noise, seed))
        reached.append(rates[min(searching.best, 4)] / max(rates.values()))
    assert np.median(reached) >= 0.95
    assert np.mean(np.array(reached) >= 0.93) >= 0.98


def test_numbers_that_would_not_fit_are_not_tried() -> None:
    decisions: list[Decision] = []
    searching = Tuner(2, decisions.append)
    while not searching.settled:
        if searching.learners > 3:
            searching.refused("too little memory")
        else:
            searching.add(LINEAR[searching.learners])
    assert searching.best == 3
    assert str(decisions[-1]) == "3 learners: not 4: too little memory"
    assert (decisions[-1].fewer, decisions[-1].more, decisions[-1].pairs) == (3, 4, 0)
    assert math.isnan(decisions[-1].more_images_per_second)


def test_a_number_that_cannot_be_had_after_all() -> None:
    searching = Tuner(2)
    while searching.learners != 3:
        searching.add(100.0)
    searching.refused("the GPU's memory is full")
    settle(searching, machine({1: 50, 2: 100}))
    assert searching.best == 2


# Watching


def test_a_change_that_lasts_is_looked_into() -> None:
    told: list[Any] = []
    searching = Tuner(2, told.append)
    settle(searching, machine({1: 100, 2: 180, 3: 150}))
    told.clear()
    assert (searching.best, searching.window_seconds) == (2, tuner.WATCHED_SECONDS)
    for _ in range(REFERENCE_WINDOWS):
        searching.add(180)
    for _ in range(CHANGED_WINDOWS):
        assert searching.settled
        assert not told
        searching.add(100)
    assert not searching.settled
    assert told == [Retuning(2, 180, (100,) * CHANGED_WINDOWS)]
    assert str(told[0]) == "2 learners: compared again, for the last windows had 100, 100, 100, 100 images/s, not 180"
    settle(searching, machine({1: 110, 2: 100, 3: 90}))
    assert searching.best == 1
    assert [decision.chosen for decision in told[1:]] == [2, 1]


def test_windows_that_differed_to_the_other_side_do_not_count() -> None:
    told: list[Any] = []
    searching = Tuner(2, told.append)
    settle(searching, machine({1: 100, 2: 180, 3: 150}))
    for rate in (180, 200, 190, 100, 100, 250, 300, 240, 260):
        searching.add(rate)
    assert told[-1] == Retuning(2, 190, (250, 300, 240, 260))


@pytest.mark.parametrize("rates", [[100, 180] * 6, [200, 160] * 6, [100, 100, 100, 180] * 3, [100, 300] * 6])
def test_other_changes_are_not(rates: list[float]) -> None:
    searching = Tuner(2)
    settle(searching, machine({1: 100, 2: 180, 3: 150}))
    for rate in (180, 180, 180, *rates):
        searching.add(rate)
        assert searching.settled
