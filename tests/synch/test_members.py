"""Learners that leave and join: what is allowed, and who is there."""

from __future__ import annotations

import doctest
import random
from typing import Any

import pytest

from crossbow import ConfigurationError
from crossbow.synch import members
from crossbow.synch.members import Change, changes_of, memberships, numbers_of


def test_examples() -> None:
    assert doctest.testmod(members).failed == 0


def test_changes_come_in_order_of_time_and_learners_leave_first() -> None:
    changes = changes_of(2, leave=[(5, 0), (1.0, 1)], join=[(5, 1), (2.0, 2)])
    assert changes == (Change(1.0, 1, False), Change(2.0, 2, True), Change(5.0, 0, False), Change(5.0, 1, True))
    assert memberships(2, changes) == [(0, 1), (0,), (0, 2), (2,), (1, 2)]
    assert numbers_of(2, changes) == 3
    assert numbers_of(4, ()) == 4


def test_numbers_go_on_after_those_of_all_that_have_been_there() -> None:
    leave, join = [(0, 0), (3.0, 2)], [(1.0, 2), (2.0, 3), (4.0, 2), (4.0, 4)]
    changes = changes_of(2, leave, join)
    assert [change.learner for change in changes if change.joins] == [2, 3, 2, 4]
    assert memberships(2, changes)[-1] == (1, 2, 3, 4)
    assert numbers_of(2, changes) == 5


def drawn_changes(seed: int) -> tuple[int, dict[str, list[tuple[float, int]]], int]:
    """A number of learners, random changes, of which one learner is always left, and the number of all learners."""
    drawn = random.Random(seed)
    learners = known = drawn.randint(1, 3)
    there, leave, join = set(range(learners)), list[tuple[float, int]](), list[tuple[float, int]]()
    for moment in range(drawn.randint(1, 8)):
        leaves = len(there) > 1 and drawn.random() < 0.6
        learner = drawn.choice(sorted(there if leaves else set(range(known + 1)) - there))
        (leave if leaves else join).append((0.4 * (moment + drawn.random()), learner))
        there ^= {learner}
        known = max(known, learner + 1)
    return learners, {"leave": leave, "join": join}, known


@pytest.mark.parametrize(
    ("leave", "join", "text"),
    [
        ([(1.0, 2)], (), "leave must be pairs of a time and a learner that is there then, and not the last one"),
        ([(1.0, 0), (2.0, 0)], (), "leave must be pairs of a time and a learner that is there then"),
        ([(1.0, 0), (2.0, 1)], (), "and not the last one"),
        ((), [(1.0, 0)], "join must be pairs of a time and a learner that has left, or the next number"),
        ((), [(1.0, 3)], "join must be .*, or the next number"),
        ([(2.0, 0)], [(1.0, 0)], "join must be pairs of a time and a learner that has left"),
        ([(-1.0, 0)], (), r"leave must be pairs of a time ≥ 0 and a learner's number, as \[\(10.0, 2\)\]"),
        ([1.0], (), "leave must be pairs of a time ≥ 0"),
        ([(1.0, -1)], (), "leave must be pairs of a time ≥ 0"),
        ([(1.0, True)], (), "leave must be pairs of a time ≥ 0"),
        (None, (), "leave must be pairs of a time ≥ 0"),
        ([("1", 0)], (), "leave must be pairs of a time ≥ 0"),
        (3, (), "leave must be pairs of a time ≥ 0 .* Received: leave=3"),
        ((), [(1.0, 2.0)], "join must be pairs of a time ≥ 0"),
        ((), [(float("nan"), 2)], "join must be pairs of a time ≥ 0"),
        ((), [(1.0, 2, 3)], "join must be pairs of a time ≥ 0"),
    ],
)
def test_what_cannot_be_is_refused(leave: Any, join: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        changes_of(2, leave, join)
