"""What `FakeCollective` records and injects."""

from __future__ import annotations

import doctest
import importlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from crossbow.testing import Failure, FakeCollective, Stall, WrongSize
from crossbow.types import Array
from tests.support import SECONDS, within


def ones(size: int = 2) -> list[Array]:
    return [np.ones(size), np.ones(size)]


def test_it_records_the_sizes_of_every_call() -> None:
    collective = FakeCollective(2)
    for size in (3, 7):
        collective.all_reduce(ones(size))
    assert collective.calls == [(3, 3), (7, 7)]


def test_it_does_what_is_injected_before_the_sum() -> None:
    seen: list[int] = []

    def damage(call: int, vectors: Sequence[Any]) -> None:
        seen.append(call)
        vectors[0][0] = 100

    vectors = ones()
    collective = FakeCollective(2, inject=damage)
    collective.all_reduce(vectors)
    collective.all_reduce(vectors)
    assert seen == [0, 1]
    assert vectors[1].tolist() == [201, 4]  # damaged twice: 100 + 1 = 101, then 100 + 101; undamaged: 2, then 4


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Failure(ConnectionError("device 1 is gone"), at=1), ConnectionError("device 1 is gone")),
        (WrongSize(at=1), ValueError("Received: 2 of [((1,), 'float64'), ((2,), 'float64')]")),
        (WrongSize(at=1, device=0), ValueError("Received: 2 of [((1,), 'float64'), ((2,), 'float64')]")),
    ],
    ids=["failure", "last", "first"],
)
def test_a_fault_comes_once_and_nothing_is_summed(fault: Any, error: Exception) -> None:
    collective, vectors = FakeCollective(2, inject=fault), ones()
    collective.all_reduce(vectors)
    with pytest.raises(type(error)) as caught:
        collective.all_reduce(vectors)
    assert str(error) in str(caught.value)
    assert [vector.tolist() for vector in vectors] == [[2, 2]] * 2
    collective.all_reduce(vectors)
    assert [vector.tolist() for vector in vectors] == [[4, 4]] * 2
    assert collective.calls == [(2, 2)] * 3


def test_a_stall_lasts_until_it_is_over() -> None:
    stall = Stall(at=1)
    collective, vectors = FakeCollective(2, inject=stall), ones()
    within(SECONDS, lambda: collective.all_reduce(vectors))
    assert not stall.begun.is_set()
    thread = threading.Thread(target=collective.all_reduce, args=(vectors,))
    thread.start()
    try:
        assert stall.begun.wait(SECONDS)
        assert [vector.tolist() for vector in vectors] == [[2, 2]] * 2
        assert thread.is_alive()
    finally:
        stall.over.set()
        thread.join()
    assert [vector.tolist() for vector in vectors] == [[4, 4]] * 2


def test_the_example() -> None:
    assert doctest.testmod(importlib.import_module("crossbow.testing.collective")).failed == 0
