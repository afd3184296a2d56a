"""Decisions that rank 0 makes for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crossbow.cluster.members import Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.runtime.common_decisions import CommonDecisions
from tests.cluster.fake_network import FakeNetwork, at_once


def yes() -> bool:
    return True


def no() -> bool:
    return False


def never() -> bool:
    raise AssertionError("only rank 0 decides")


def test_alone_a_signal_counts_at_the_next_tick() -> None:
    common = CommonDecisions(Ranks(View(0, (Rank(0, "here"),))))
    assert not common.several
    assert not common.at_tick(no, yes)
    assert (common.pauses, common.interrupted) == (True, 0)
    common.receive(15)
    assert (common.at_tick(yes, no), common.pauses, common.interrupted) == (True, False, 15)


def test_rank_0_decides_for_all_at_a_tick() -> None:
    decisions = [CommonDecisions(ranks) for ranks in FakeNetwork(3).ranks()]
    answers = [(yes, no), (never, never), (never, never)]

    def of(number: int) -> Callable[[], Any]:
        return lambda: (decisions[number].at_tick(*answers[number]), decisions[number].pauses)

    assert at_once([of(number) for number in range(3)]) == [(True, False)] * 3


def test_a_signal_of_any_rank_ends_all() -> None:
    first, second = (CommonDecisions(ranks) for ranks in FakeNetwork(2).ranks())
    second.receive(15)
    second._tell_first()
    assert second.received == 0  # rank 0 is told once
    found = at_once([lambda: first.look_for_signals(), lambda: second.look_for_signals()])
    assert found == [15, 15]
    assert first.interrupted == second.interrupted == 15
