"""Sums over ranks: their order, their blocks, and waits that end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crossbow.cluster import sums
from crossbow.cluster.sums import Waiting, blocks_of, chain, sum_target, tree
from crossbow.types import Aborted, CrossbowError
from tests.cluster.fake_network import FakeNetwork, FakeTransport, at_once


def left_to_right(vectors: Any) -> Any:
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total


def chained(transport: FakeTransport, own: Any, nbytes: int) -> Any:
    """The sum of this and other ranks' vectors: (rows of a rank, elements). nbytes: of a block."""
    partial, whole = np.full(own.shape[1], np.nan, own.dtype), np.full(own.shape[1], np.nan, own.dtype)
    target = sum_target(transport, partial, whole)

    def adding(place: slice) -> Callable[[], None]:
        def add() -> None:
            rows = list(own[:, place])
            target[place] = left_to_right(rows if transport.rank == 0 else [target[place], *rows])

        return add

    chain(transport, partial, whole, [(place, adding(place)) for place in blocks_of(whole, nbytes)], Waiting())
    return whole


@pytest.mark.parametrize("sizes", [(4, 4), (1, 3, 2), (2, 2, 2, 1)])
@pytest.mark.parametrize("nbytes", [64, 1000])
def test_a_chain_adds_from_left_to_right(sizes: tuple[int, ...], nbytes: int) -> None:
    """With the same bits as one process: summands of different sizes show another order."""
    generator = np.random.default_rng(1)
    scale = 10.0 ** generator.integers(-3, 4, (sum(sizes), 1))
    vectors = (generator.standard_normal((sum(sizes), 40)) * scale).astype(np.float32)
    parts = np.split(vectors, np.cumsum(sizes)[:-1])
    transports = FakeNetwork(len(sizes)).transports()

    def of(rank: int) -> Callable[[], Any]:
        return lambda: chained(transports[rank], parts[rank], nbytes)

    found = at_once([of(rank) for rank in range(len(sizes))])
    expected = left_to_right(vectors)
    assert all(whole.tobytes() == expected.tobytes() for whole in found)
    if len(sizes) > 2:
        other = left_to_right([left_to_right(part) for part in parts])
        assert other.tobytes() != expected.tobytes()


def test_a_tree_adds_all() -> None:
    transports = FakeNetwork(3).transports()
    vectors = [np.full(4, 10.0**rank) for rank in range(3)]

    def of(rank: int) -> Callable[[], None]:
        return lambda: tree(transports[rank], vectors[rank], Waiting())

    at_once([of(rank) for rank in range(3)])
    assert all(vector.tolist() == [111.0] * 4 for vector in vectors)


def test_a_wait_ends_when_the_run_is_aborted() -> None:
    with pytest.raises(Aborted):
        Waiting(lambda: True).until(lambda: False, "nothing")


def test_a_wait_ends_at_its_limit() -> None:
    with pytest.raises(CrossbowError, match=r"^waited 0\.01 s for rank 1 \(b\)$"):
        Waiting(seconds=0.01).until(lambda: False, "rank 1 (b)")


@pytest.mark.parametrize(("ranks", "longest"), [(1, 10e-3), (2, 10e-3), (5, 2.5e-3), (100, 1e-3)])
def test_looks_are_further_apart_the_longer_a_wait_takes(
    ranks: int, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not as far if many ranks wait in turn: their delays add up."""
    sleeps = list[float]()
    monkeypatch.setattr(sums.time, "sleep", sleeps.append)
    Waiting(ranks=ranks).until(lambda: len(sleeps) == 100, "nothing")
    assert sleeps[:2] == pytest.approx([50e-6, 55e-6])
    assert sleeps[-1] == max(sleeps) == longest


def test_what_holds_is_not_waited_for() -> None:
    Waiting(lambda: True, seconds=0).until(lambda: True, "nothing")


def test_blocks_cover_a_vector() -> None:
    """In whole cache lines, but for its end."""
    assert blocks_of(np.zeros(0), 1) == []
    assert blocks_of(np.zeros(20), 1) == [slice(0, 8), slice(8, 16), slice(16, 20)]
    assert blocks_of(np.zeros(32, np.float32), 64) == [slice(0, 16), slice(16, 32)]
    assert blocks_of(np.zeros(40, np.float32), 65) == [slice(0, 32), slice(32, 40)]
