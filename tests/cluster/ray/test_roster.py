"""Views that follow from the ends of processes."""

from __future__ import annotations

from crossbow.cluster.launch import RankLaunch
from crossbow.cluster.members import Lost, Rank, View
from crossbow.cluster.ray.roster import Roster
from crossbow.cluster.ray.transport import ViewChange


def test_ranks_are_numbered_anew_and_processes_are_not() -> None:
    roster = Roster(["a", "a", "b"], needed=2)
    assert roster.change == ViewChange(View(0, (Rank(0, "a"), Rank(1, "a"), Rank(2, "b"))), (0, 1, 2))
    assert roster.name(2) == "rank 2 (b)"
    change = roster.lose(1, "killed")
    assert change == ViewChange(View(1, (Rank(0, "a"), Rank(1, "b"))), (0, 2), (Lost(Rank(1, "a"), "killed"),))
    assert roster.alive == (0, 2)
    assert not roster.lose(2, "killed").view.enough


def test_processes_know_how_many_share_their_host() -> None:
    assert Roster(["a", "b", "a"]).launches() == [
        RankLaunch(0, 3, 0, 2),
        RankLaunch(1, 3, 0, 1),
        RankLaunch(2, 3, 1, 2),
    ]


def test_a_process_that_is_added_becomes_a_rank() -> None:
    roster = Roster(["a", "b"])
    roster.lose(0, "killed")
    assert (roster.add("b"), roster.add("c")) == (2, 3)
    assert roster.alive == (1,)
    assert (roster.launch_of(2, 2), roster.launch_of(3, 2)) == (RankLaunch(2, 3, 1, 2), RankLaunch(2, 3, 0, 1))
    view = View(2, (Rank(0, "b"), Rank(1, "c")))
    assert roster.join(3) == ViewChange(view, (1, 3), joined=(Rank(1, "c"),))
    assert (roster.host(3), roster.name(3)) == ("c", "rank 1 (c)")
