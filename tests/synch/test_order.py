"""The order in which simulated learners finish: given, or that of a virtual clock."""

from __future__ import annotations

from crossbow.synch.order import Scripted, Timed, order_of


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


def test_a_clock_without_a_limit_ends_when_nobody_runs() -> None:
    order = order_of(1, None, [2.0], tasks=2)
    for end in (0.5, 1.0, 1.5):
        order.started(0)
        assert order.next({0}) == (end, 0)
    assert order.next(set()) is None


def test_members_change_before_messages_arrive_and_these_before_learners_finish() -> None:
    order, seen = Timed([1.0, 1.0], events=2), list[str]()
    order.started(1)
    order.started(0)
    order.send(1.0, lambda: seen.append("message"))
    order.change(1.0, lambda: seen.append("change"))
    assert order.under_way == 1
    assert order.next({0, 1}) == (1.0, 0)
    assert seen == ["change", "message"]
    assert order.under_way == 0
    assert order.next({1}) == (1.0, 1)


def test_a_task_that_was_given_up_does_not_end() -> None:
    """The learner has begun another one meanwhile, after a delay."""
    order = Timed([1.0, 5.0], events=3)
    order.started(0)
    order.started(1)
    order.started(0, delay=2.0)
    assert order.next({0, 1}) == (3.0, 0)
    assert order.next({1}) == (5.0, 1)


def test_after_the_last_task_messages_arrive_and_nothing_else_happens() -> None:
    order, seen = Timed([1.0], events=1), list[str]()
    order.started(0)
    order.change(2.0, lambda: seen.append("change"))
    assert order.next({0}) == (1.0, 0)
    order.started(0)
    order.send(3.0, lambda: seen.append("message"))
    assert order.next({0}) is None
    assert (seen, order.now) == (["message"], 4.0)


def test_without_a_delay_a_message_arrives_at_once() -> None:
    seen: list[int] = []
    for order in (Scripted([0]), Timed([1.0], events=1)):
        order.send(0.0, lambda: seen.append(1))
        assert order.under_way == 0
    assert seen == [1, 1]
