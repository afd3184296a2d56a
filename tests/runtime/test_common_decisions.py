"""Decisions that rank 0 makes for all ranks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow.cluster.fault import Fault
from crossbow.cluster.members import Left, Rank, View
from crossbow.cluster.ranks import LEAVE, Ranks
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


@pytest.fixture
def as_usual() -> Iterator[None]:
    """Signals do what they do by default, before and after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("as_usual")
def test_signals_are_noted_for_a_while() -> None:
    common = CommonDecisions(Ranks(View(0, (Rank(0, "here"),))))
    with common.receiving([signal.SIGTERM]):
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert common.received == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # the second one
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.usefixtures("as_usual")
def test_ctrl_c_is_noted_once() -> None:
    common = CommonDecisions(Ranks(View(0, (Rank(0, "here"),))))
    with common.receiving([]):
        signal.raise_signal(signal.SIGINT)
        assert common.received == signal.SIGINT
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("as_usual")
def test_the_application_s_handlers_stay() -> None:
    common = CommonDecisions(Ranks(View(0, (Rank(0, "here"),))))
    seen: list[int] = []

    def own(number: int, frame: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, own)
    with common.receiving([signal.SIGTERM]):
        signal.raise_signal(signal.SIGTERM)
    assert (seen, common.received) == ([signal.SIGTERM], 0)
    assert signal.getsignal(signal.SIGTERM) is own


@pytest.mark.usefixtures("as_usual")
def test_another_thread_takes_no_signals() -> None:
    common = CommonDecisions(Ranks(View(0, (Rank(0, "here"),))))

    def work() -> object:
        with common.receiving([signal.SIGTERM]):
            return signal.getsignal(signal.SIGTERM)

    assert at_once([work]) == [signal.SIG_DFL]


# Ranks that leave and join


class FakeRanks:
    """Rank 0 of three ranks, or another one. It notes what it is asked."""

    connected = several = admits = True

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.is_first, self.size = rank, rank == 0, 3
        self.view = SimpleNamespace(number=0, enough=True)
        self.asked_to_leave = self.join_wanted = False
        self.waiting: list[tuple[int, int]] = []
        self.log: list[Any] = []

    def requests(self) -> list[tuple[int, int]]:
        waiting, self.waiting = self.waiting, []
        return waiting

    def agree(self, decide: Callable[[], Any]) -> Any:
        return decide()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.log.append((name, *arguments))


def decisions(ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch, faults: str = "") -> CommonDecisions:
    monkeypatch.setenv("CROSSBOW_FAULT", faults)
    given: Any = ranks
    return CommonDecisions(given)


def test_ranks_that_ask_leave_at_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = FakeRanks()
    common = decisions(ranks, monkeypatch)
    ranks.waiting = [(2, LEAVE), (1, LEAVE)]
    assert not common.at_tick(no, no, elastic=True)
    assert (common.pauses, common.interrupted) == (True, 0)
    common.change_view()
    assert ranks.log == [("gather", None), ("await_view",)]
    assert not common.at_tick(no, no, elastic=True)
    assert common.pauses  # until the view has changed
    common.regrouped()
    common.change_view()
    assert not common.at_tick(no, no, elastic=True)
    assert not common.pauses
    assert len(ranks.log) == 2


def test_rank_0_leaves_too_and_asks_once_in_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = FakeRanks()
    common = decisions(ranks, monkeypatch)
    ranks.asked_to_leave = True
    assert not common.at_tick(no, no, elastic=True)
    with pytest.raises(Left):
        common.change_view()
    assert ranks.log == [("gather", None)]
    common.regrouped()
    common.at_tick(no, no, elastic=True)
    assert not common.pauses
    ranks.view.number = 1
    common.at_tick(no, no, elastic=True)
    assert common.pauses


def test_another_rank_tells_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = FakeRanks(rank=1)
    common = decisions(ranks, monkeypatch)
    ranks.asked_to_leave = True
    common.receive(15)
    for _ in range(2):
        common._tell_first()
    assert ranks.log == [("ask_to_leave",), ("ask_to_stop", 15)]
    assert common.received == 0


@pytest.mark.parametrize(("elastic", "leaving"), [(False, [1]), (True, [0, 1, 2])])
def test_training_ends_where_it_cannot_go_on_with_others(
    elastic: bool, leaving: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = FakeRanks()
    common = decisions(ranks, monkeypatch)
    ranks.waiting = [(rank, LEAVE) for rank in leaving]
    assert common.at_tick(lambda: common.interrupted == signal.SIGTERM, no, elastic=elastic)
    assert not common.pauses
    common.change_view()
    assert ranks.log == []


def test_the_signal_that_came_first_ends_training(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = FakeRanks()
    common = decisions(ranks, monkeypatch)
    ranks.waiting = [(1, 2), (2, LEAVE)]
    common.at_tick(no, no)
    common.receive(15)
    assert common.look_for_signals() == 2


def test_ranks_join_where_training_can_go_on_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = FakeRanks()
    common = decisions(ranks, monkeypatch)
    ranks.join_wanted = True
    common.at_tick(no, no)
    assert not common.pauses
    assert common.at_tick(yes, no, elastic=True)
    assert not common.pauses
    common.at_tick(no, no, elastic=True)
    assert common.pauses
    common.change_view()
    assert ranks.log == [("gather", None), ("admit",), ("await_view",)]
    common.regrouped()
    common.change_view()
    assert len(ranks.log) == 3


def test_faults_happen_once_in_their_view_and_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = FakeRanks()
    common = decisions(ranks, monkeypatch, "leave:2@4,join@6,kill:0@8,kill:1@9")
    ranks.join_wanted = True
    common.at_tick(no, no, elastic=True)
    assert not common.pauses  # a fault lets it join later
    assert [tick for tick in range(10) if common.fault_is_due(tick, 1)] == [4]
    assert [tick for tick in range(10) if common.fault_is_due(tick, 3)] == [4, 5, 6]
    common.strike(3, 1, elastic=True)
    common.strike(4, 1, elastic=True)
    assert not common.fault_is_due(4, 1)
    common.change_view()
    assert ranks.log == [("gather", None), ("await_view",)]
    ranks.view.number = 1
    common.regrouped()
    common.strike(6, 1, elastic=True)
    common.change_view()
    assert ranks.log[2:] == [("gather", None), ("admit",), ("await_view",)]
    ranks.view.number = 2
    common.regrouped()
    common.at_tick(no, no, elastic=True)
    assert common.pauses  # no further fault lets a rank join
    struck: list[Fault] = []
    monkeypatch.setattr(Fault, "strike", lambda fault: struck.append(fault))
    common.strike(8, 1, elastic=True)
    ranks.view.number = 3
    common.strike(9, 1, elastic=True)
    assert struck == [Fault(0, 8)]
    ranks.view.number = 4
    assert not any(common.fault_is_due(tick, 9) for tick in range(10))


@pytest.mark.parametrize("rank", [0, 1])
def test_where_no_rank_can_leave_a_fault_ends_training(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = FakeRanks(rank)
    common = decisions(ranks, monkeypatch, "leave:2@4,join@5")
    common.strike(4, 1, elastic=False)
    assert common.received == (0 if rank else signal.SIGTERM)
    ranks.view.number = 1
    common.strike(5, 1, elastic=False)
    common.change_view()
    assert ranks.log == []


def test_a_fault_where_no_rank_can_join_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = FakeRanks()
    ranks.admits = False
    common = decisions(ranks, monkeypatch, "join@4")
    common.strike(4, 1, elastic=True)
    common.change_view()
    assert ranks.log == []
    assert capsys.readouterr().err == "CROSSBOW_FAULT: no rank can join at tick 4\n"


@pytest.mark.parametrize("kind", ["kill", "leave"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_fault_of_a_rank_that_does_not_exist_is_told(
    kind: str, rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = FakeRanks(rank)
    common = decisions(ranks, monkeypatch, f"{kind}:3@4")
    common.strike(4, 1, elastic=True)
    common.change_view()
    assert ranks.log == []
    assert capsys.readouterr().err == ("" if rank else "CROSSBOW_FAULT: there is no rank 3 at tick 4\n")
