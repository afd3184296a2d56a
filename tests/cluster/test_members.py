"""Ranks and views."""

from __future__ import annotations

from crossbow.cluster.members import Rank, View


def test_a_rank_is_named_with_its_host() -> None:
    assert str(Rank(2, "node7")) == "rank 2 (node7)"


def test_a_view_has_a_number_and_a_size() -> None:
    view = View(3, (Rank(0, "a"), Rank(1, "b")))
    assert (view.number, len(view)) == (3, 2)
