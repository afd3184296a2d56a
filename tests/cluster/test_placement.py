"""Which tasks belong to which rank."""

from __future__ import annotations

import pytest

from crossbow.cluster.placement import Placement


@pytest.mark.parametrize("counts", [(1,), (2, 2), (1, 3, 2)])
def test_every_task_belongs_to_one_rank(counts: tuple[int, ...]) -> None:
    total = sum(counts)
    places = [Placement(total, sum(counts[:rank]), own) for rank, own in enumerate(counts)]
    for tasks in range(3 * total + 1):
        found = [place.task(index) for place in places for index in range(place.own_of(tasks))]
        assert sorted(found) == list(range(tasks))
    for learner in range(total):
        assert [place.has(learner) for place in places].count(True) == 1


def test_a_task_goes_to_the_learner_of_its_number() -> None:
    place = Placement(learners=5, first=2, own=2)
    assert all(place.has(place.task(index) % 5) for index in range(20))
    assert not place.whole
    assert Placement.alone(5).whole
    assert [Placement.alone(5).task(index) for index in range(7)] == list(range(7))
