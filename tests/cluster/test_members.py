"""Ranks, views, and what changes between views."""

from __future__ import annotations

from crossbow.cluster.members import Changes, Lost, Rank, View


def test_a_rank_is_named_with_its_host() -> None:
    assert str(Rank(2, "node7")) == "rank 2 (node7)"


def test_a_view_has_a_number_and_a_size() -> None:
    view = View(3, (Rank(0, "a"), Rank(1, "b")))
    assert (view.number, len(view)) == (3, 2)


def test_a_rank_that_has_left_again_has_not_joined() -> None:
    new, lost = Rank(2, "c"), Lost(Rank(2, "c"), "killed")
    assert Changes(joined=(new,)).followed_by(Changes(lost=(lost,))) == Changes((lost,))
    # Another rank takes the number of the one that was lost, perhaps on the same host.
    for changes in (Changes((lost,), (new,)), Changes((lost,)).followed_by(Changes(joined=(new,)))):
        assert changes == Changes((lost,), (new,))
    assert Changes().followed_by(Changes((lost,), (new,))) == Changes((lost,), (new,))
