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


def test_ranks_that_have_joined_are_renumbered_when_others_leave() -> None:
    joined = Changes(joined=(Rank(2, "c"), Rank(3, "c")))
    assert joined.followed_by(Changes((Lost(Rank(0, "a"), "killed"),))).joined == (Rank(1, "c"), Rank(2, "c"))
    # The second loss is of the newcomer that the first one has made rank 1.
    both = Changes((Lost(Rank(0, "a"), "killed"), Lost(Rank(1, "c"), "killed")), (Rank(2, "d"),))
    assert joined.followed_by(both) == Changes(both.lost, (Rank(1, "c"), Rank(2, "d")))
    one_by_one = joined.followed_by(Changes(both.lost[:1])).followed_by(Changes(both.lost[1:], both.joined))
    assert one_by_one == joined.followed_by(both)
