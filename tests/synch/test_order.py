"""The order in which simulated learners finish: given, or that of a virtual clock."""

from __future__ import annotations

from crossbow.synch.order import Scripted, Timed


def test_events_of_learners_that_do_not_run_are_postponed() -> None:
    order = Scripted([1, 0, 1, 2])
    assert order.next({0, 2}) == (0.0, 0)
    assert order.next({0, 1, 2}) == (1.0, 1)
    assert order.next({2}) == (2.0, 2)
    assert order.next({0, 2}) is None
    assert order.next({1}) == (3.0, 1)
    assert order.next({1}) is None


def test_a_clock_lets_the_fast_finish_more_often() -> None:
    order, finished = Timed([1.0, 2.5], events=6), []
    for learner in (0, 1):
        order.started(learner)
    while (event := order.next({0, 1})) is not None:
        finished.append(event)
        order.started(event[1])
    assert finished == [(1.0, 0), (2.0, 0), (2.5, 1), (3.0, 0), (4.0, 0), (5.0, 0)]
    assert Timed([1.0], events=3).next({0}) is None  # nothing has begun
