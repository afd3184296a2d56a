"""The sentences about ranks that have left or joined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crossbow.cluster.members import Lost, Rank
from crossbow.runtime.new_view import Departure, NewCoordinator, NewRanks


def test_it_names_ranks_reasons_and_what_is_left() -> None:
    lost = Lost(Rank(2, "node3"), "its process has ended"), Lost(Rank(0, "node1"), "killed")
    departure = Departure(view=1, ranks=1, learners=4, tick=500, tasks=2000, seconds=1.26, enough=True, lost=lost)
    assert str(departure) == (
        "rank 2 (node3) left: its process has ended; rank 0 (node1) left: killed. "
        "Training goes on after task 2,000, with 1 rank and 4 learners (1.3 s)"
    )
    assert "Training pauses after task 2,000, with 1 rank" in str(replace(departure, enough=False))


@pytest.mark.parametrize(("merges", "text"), [(1, "1 merge"), (1234, "1,234 merges")])
def test_it_says_how_many_merges_are_lost(merges: int, text: str) -> None:
    lost = (Lost(Rank(1, "node2"), "killed"),)
    assert str(
        Departure(
            view=1, ranks=2, learners=2, tick=5, tasks=20, seconds=0.04, enough=True, lost=lost, lost_merges=merges
        )
    ) == (
        f"rank 1 (node2) left: killed. A part of the base model lacks {text}. "
        "Training goes on after task 20, with 2 ranks and 2 learners (0.0 s)"
    )


def test_it_names_the_new_ranks() -> None:
    new = Rank(1, "node2"), Rank(2, "node3")
    assert str(NewRanks(view=1, ranks=3, learners=12, tick=5, tasks=20, seconds=0.04, enough=True, new=new)) == (
        "rank 1 (node2) joined; rank 2 (node3) joined. "
        "Training goes on after task 20, with 3 ranks and 12 learners (0.0 s)"
    )


def test_it_names_the_new_rank_0() -> None:
    event = NewCoordinator(Rank(1, "node2"), view=1, tick=5, tasks=20)
    assert str(event) == "rank 1 (node2) is now rank 0, which decides and writes the files"
