"""The nodes are known while the head answers, and nothing waits for it when it does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from crossbow.cluster.ray import lookout
from crossbow.cluster.ray.connection import ClusterNode
from crossbow.cluster.ray.lookout import Lookout
from tests.support import until

A, B = ClusterNode("id-of-a", "a", {}), ClusterNode("id-of-b", "b", {})


class FakeHead:
    def __init__(self) -> None:
        self.present = [A]
        self.answers = threading.Event()
        self.answers.set()
        self.fails = False

    def nodes(self) -> list[ClusterNode]:
        assert self.answers.wait(60)
        if self.fails:
            raise ConnectionError
        return list(self.present)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> FakeHead:
    monkeypatch.setattr(lookout, "LOOK", 0.01)
    return FakeHead()


@pytest.fixture
def found(head: FakeHead) -> Iterator[Lookout]:
    looks = Lookout(head.nodes)
    looks.begin()
    yield looks
    head.answers.set()
    looks.end()
    assert not looks._thread.is_alive()


def test_each_look_is_new(head: FakeHead, found: Lookout) -> None:
    assert found.nodes(60) == [A]
    head.present.append(B)
    assert found.nodes(60) == [A, B]


def test_a_head_that_does_not_answer(head: FakeHead, found: Lookout) -> None:
    found.nodes(60)
    head.answers.clear()
    until(lambda: found.silent > 0.2)
    assert found.nodes(0.01) is None
    head.answers.set()
    assert found.nodes(60) == [A]
    until(lambda: found.silent < 0.2)


def test_between_two_looks_the_head_is_not_silent(found: Lookout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that is stopped, and goes on, does not take the head for lost."""
    monkeypatch.setattr(lookout, "LOOK", 60.0)
    found.nodes(60)
    until(lambda: found._unanswered is None)
    monkeypatch.setattr(lookout, "time", SimpleNamespace(monotonic=lambda: 1e9))
    assert found.silent == 0


def test_a_look_that_fails_is_no_answer(head: FakeHead, found: Lookout) -> None:
    head.fails = True
    until(lambda: found.silent > 0.2)
    head.fails = False
    assert found.nodes(60) == [A]


def test_it_ends_before_it_has_begun() -> None:
    Lookout(FakeHead().nodes).end()
