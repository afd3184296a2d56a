"""Groups of learners: as given, of consecutive learners, or by speed."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow import ConfigurationError
from crossbow.synch import (
    Grouping,
)
from crossbow.synch.grouping import ALIKE, Partition, groups_by_speed, neighbours
from crossbow.synch.rule import Arrival


def test_a_group_of_n_weighs_one_nth_and_less_where_it_is_stale() -> None:
    assert [Grouping().omega(Arrival(0, 9, n, y)) for n, y in ((1, 1), (4, 1), (4, 2))] == [1, 0.25, 0.125]


def test_groups() -> None:
    assert Grouping([[1, 0], [2]]).groups == ((1, 0), (2,))  # type: ignore[arg-type]
    assert Grouping(2).settled([1.0] * 5).groups == ((0, 1), (2, 3, 4))
    assert Grouping().settled([1.0] * 3).groups == ((0, 1, 2),)
    assert Grouping().settled([1.0, 3.0, 1.1, 9.0, 3.3]).groups == ((3,), (1, 4), (0, 2))
    assert Grouping().settled([ALIKE, 1.0]).groups == ((0, 1),)
    assert Grouping().settled([1.01 * ALIKE, 1.0]).groups == ((0,), (1,))
    with pytest.raises(ConfigurationError, match="groups of 4 learners together"):
        Grouping(((0, 1), (2,))).settled([1.0] * 4)
    with pytest.raises(ConfigurationError, match="at most the number of learners, 2"):
        Grouping(3).settled([1.0] * 2)


def test_a_group_merges_and_continues_together() -> None:
    rule = Grouping(((0, 2), (1,)))
    assert [rule.contributors(learner, 3) for learner in range(3)] == [(0, 2), (1,), (0, 2)]
    assert rule.tasks_per_merge(3) == 2
    assert not rule.may_start([1, 0, 0], {0}, 0)
    assert rule.may_start([1, 0, 1], {0, 2}, 2)
    assert rule.may_start([0, 1, 0], {1}, 1)


@pytest.mark.parametrize(("text", "value"), [("2", 2), ("0,1/2,3", ((0, 1), (2, 3))), ("0/1/2", ((0,), (1,), (2,)))])
def test_groups_as_text(text: str, value: Any) -> None:
    domain = Partition()
    assert domain.canonical(domain.read(text)) == value
    assert domain.write(value) == text


@pytest.mark.parametrize(
    ("speeds", "groups"),
    [
        ([1.0], ((0,),)),
        ([1.0, 1.0, 1.0], ((0, 1, 2),)),
        ([1.0, 2.0, 4.0], ((2,), (1,), (0,))),
        ([1.0, 1.2, 1.44], ((0, 1, 2),)),  # neighbours are alike
        ([4.0, 1.0, 3.9, 1.1], ((0, 2), (1, 3))),
    ],
)
def test_groups_by_speed(speeds: list[float], groups: Any) -> None:
    assert groups_by_speed(speeds) == groups


@pytest.mark.parametrize(
    ("learners", "number", "sizes"), [(5, 2, [2, 3]), (6, 3, [2, 2, 2]), (7, 3, [2, 2, 3]), (3, 1, [3])]
)
def test_consecutive_groups_are_as_equal_as_possible(learners: int, number: int, sizes: list[int]) -> None:
    groups = neighbours(learners, number)
    assert [len(group) for group in groups] == sizes
    assert [learner for group in groups for learner in group] == list(range(learners))


@pytest.mark.parametrize(
    ("groups", "learners", "expected"),
    [
        (None, 3, None),
        (2, 3, 2),
        (4, 3, 3),
        (((0, 2), (1,)), 3, ((0, 2), (1,))),
        (((0, 2), (1, 3)), 3, 2),
        (((0, 2), (1,)), 5, 2),
        (((0,), (1,), (2,)), 2, 2),
    ],
)
def test_groups_fit_another_number_of_learners(groups: Any, learners: int, expected: Any) -> None:
    assert Grouping(groups).fitted(learners) == Grouping(expected)
