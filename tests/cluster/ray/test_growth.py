"""Processes join one after the other, and only when rank 0 lets them."""

from __future__ import annotations

import threading

import pytest

from crossbow.cluster.admission import Journal
from crossbow.cluster.ray import growth
from crossbow.cluster.ray.connection import ClusterNode
from crossbow.cluster.ray.growth import Growth
from tests.support import until

NODES = [ClusterNode("id-of-a", "a", {}), ClusterNode("id-of-b", "b", {})]


class FakeGrower:
    """Creates processes, which become ranks if they are prepared."""

    def __init__(self) -> None:
        self.nodes = list(NODES)
        self.journal: Journal | None = Journal((), ())
        self.created: list[ClusterNode] = []
        self.admitted: list[int] = []
        self.prepared = threading.Event()
        self.lives = True

    def nodes_to_join(self) -> list[ClusterNode]:
        return self.nodes

    def ask_for_journal(self) -> Journal | None:
        return self.journal

    def create(self, node: ClusterNode) -> int:
        self.nodes.remove(node)
        self.created.append(node)
        return 6 + len(self.created)

    def prepare(self, process: int, journal: Journal) -> bool:
        assert self.prepared.wait(60)
        return self.lives

    def admit(self, process: int) -> None:
        self.admitted.append(process)


@pytest.fixture
def grower(monkeypatch: pytest.MonkeyPatch) -> FakeGrower:
    monkeypatch.setattr(growth, "LOOK", 0.0)
    return FakeGrower()


def look_until(growth: Growth, grower: FakeGrower, admitted: list[int]) -> None:
    def look() -> bool:
        growth.look()
        return grower.admitted == admitted

    until(look, seconds=60)


def test_one_process_after_the_other(grower: FakeGrower) -> None:
    found = Growth(grower)
    for _ in range(3):
        found.look()
    assert (grower.created, grower.admitted) == (NODES[:1], [])
    grower.prepared.set()
    look_until(found, grower, [7, 8])
    found.look()
    found.end()
    assert grower.created == NODES


def test_without_a_journal_no_process_begins(grower: FakeGrower) -> None:
    found = Growth(grower)
    grower.journal = None
    found.look()
    assert grower.created == []
    grower.journal = Journal((), ())
    found.look(begins=False)
    assert grower.created == []
    found.look()
    assert grower.created == NODES[:1]
    grower.prepared.set()
    found.end()
    found.look(begins=False)  # the others have paused for it
    assert grower.admitted == [7]


def test_a_process_that_fails_is_not_admitted(grower: FakeGrower) -> None:
    found = Growth(grower)
    grower.lives = False
    grower.prepared.set()
    found.look()
    found.end()
    grower.lives = True
    look_until(found, grower, [8])
    found.end()
