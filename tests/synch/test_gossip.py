"""Gossip: who sends to whom, and how messages are mixed in."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.synch import (
    Gossip,
)


@pytest.mark.parametrize("probability", [0.0, 0.2, 1.0])
def test_gossip_goes_to_all_others_alike(probability: float) -> None:
    rule, draws = Gossip(probability), 4000
    peers = [rule.peer(1, 4, clock, seed=5) for clock in range(draws)]
    assert peers == [rule.peer(1, 4, clock, seed=5) for clock in range(draws)]
    assert probability in (0, 1) or peers != [rule.peer(2, 4, clock, seed=5) for clock in range(draws)]
    counts = [peers.count(peer) / draws for peer in (0, 1, 2, 3)]
    assert counts[1] == 0
    assert [counts[i] for i in (0, 2, 3)] == pytest.approx([probability / 3] * 3, abs=0.03)
    assert rule.peer(0, 1, 0, seed=0) is None


def test_a_draw_depends_on_nothing_else() -> None:
    """The first numbers of a generator whose key is the seed and the learner, and whose counter is the clock."""
    rule, seed = Gossip(0.5), 2**64 + 7
    for clock in (*range(70), 10**6 + 1):
        draw, choice = np.random.Philox(key=np.array([7, 3], np.uint64), counter=clock).random_raw(2)
        assert rule.peer(3, 9, clock, seed) == (None if draw >= 2**63 else (4 + int(choice) % 8) % 9)


@pytest.mark.parametrize(
    ("mass", "received", "part"), [(0.25, 0.25, 0.5), (0.5, 0.0, 0.0), (0.0, 0.25, 1.0), (3, 1, 0.25)]
)
def test_messages_are_mixed_in_by_their_mass(mass: float, received: float, part: float) -> None:
    ((target, terms),) = Gossip().mix(mass, received).steps
    assert (target, dict(terms)) == ("weights", {"weights": 1 - part, "received": part})


def test_a_sender_gives_away_half_of_its_mass() -> None:
    assert Gossip().part_sent() == 0.5
