"""Common decisions, and values of all ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from crossbow.cluster import ranks as module
from crossbow.cluster.admission import Admission, CommonStep, Entry, Joining, Journal
from crossbow.cluster.members import NotJoined, Rank, RankFailedError, View, ViewChangedError
from crossbow.cluster.ranks import LEAVE, LOSS, Ranks
from crossbow.cluster.transport import Channel
from crossbow.types import CrossbowError, NonFiniteLossError
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.cluster.ray.processes import Processes
from tests.support import raising


def on_all(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    def of(ranks: Ranks) -> Callable[[], Any]:
        return lambda: work(ranks)

    return at_once([of(ranks) for ranks in FakeNetwork(size).ranks()])


def test_rank_0_decides() -> None:
    decisions = on_all(3, lambda ranks: (ranks.agree(lambda: ["first", ranks.rank]), ranks.agree(lambda: None)))
    assert decisions == [(["first", 0], None)] * 3


def test_a_failure_is_forgotten_by_all() -> None:
    """What was sent before does not arrive; what was sent after does. Without a failure, everything arrives."""

    def work(ranks: Ranks) -> Any:
        other, found = 1 - ranks.rank, []
        for fails in (False, True, False):
            ranks.transport.send(b"before", other, Channel.NOTE)
            with contextlib.suppress(ValueError), ranks.call():
                if fails and ranks.rank == 1:
                    raise ValueError("broken")
            ranks.forget_failures()
            ranks.transport.send(b"after", other, Channel.NOTE)
            ranks.gather(None)
            received = iter(lambda: ranks.transport.receive(Channel.NOTE), None)
            found.append((ranks.era, [message for _, message in received]))
            ranks.gather(None)
        return found

    whole = [b"before", b"after"]
    assert on_all(2, work) == [[(0, whole), (1, [b"after"]), (1, whole)]] * 2


def test_bytes_of_rank_0() -> None:
    assert on_all(2, lambda ranks: ranks.agree_on_bytes(bytes([ranks.rank, 255]))) == [b"\x00\xff"] * 2


def test_values_are_gathered_in_rank_order() -> None:
    assert on_all(3, lambda ranks: ranks.gather({"rank": ranks.rank})) == [[{"rank": rank} for rank in range(3)]] * 3


def test_a_failure_of_this_rank_ends_its_waits_for_others() -> None:
    """With the failure itself, also where rank 0 would go on to hear who else is missing."""
    for ranks in FakeNetwork(2).ranks():
        ranks.check_own(raising(NonFiniteLossError("loss is nan")))
        with pytest.raises(NonFiniteLossError):
            ranks.gather(1)


def test_a_rank_alone_needs_no_transport() -> None:
    alone = Ranks(View(0, (Rank(0, "here"),)))
    assert (alone.size, alone.several, alone.is_first, alone.own.host) == (1, False, True, "here")
    assert (alone.agree(lambda: 5), alone.gather(6), alone.agree_on_bytes(b"7")) == (5, [6], b"7")
    assert alone.requests() == []


def test_a_rank_that_joins_decides_as_the_others_did() -> None:
    admission = Admission()
    network = FakeNetwork(2)
    transports = network.transports()
    both = [Ranks(network.view, 0, transports[0], admission=admission), Ranks(network.view, 1, transports[1])]

    def decide(ranks: Ranks) -> list[Any]:
        measured = ranks.together(lambda: ranks.gather(ranks.rank)[1])
        return [ranks.agree(lambda: "first"), measured, ranks.gather(ranks.rank), ranks.agree_on_bytes(b"x", of=1)]

    decided = at_once([lambda: decide(both[0]), lambda: decide(both[1])])
    assert decided == [["first", 1, [0, 1], b"x"]] * 2
    both[0].begin_training(elastic=True)
    journal = admission.journal()
    assert journal is not None
    more = FakeNetwork(3)
    third = Ranks(more.view, 2, more.transports()[2], joining=Joining(journal))
    assert third.joins
    assert decide(third) == ["first", 1, [0, 1, 2], b"x"]
    with pytest.raises(ValueError, match="on purpose"), third.call():
        raise ValueError("on purpose")
    assert not any(more.messages.values()), "the others do not know this rank"


def test_a_rank_that_joins_passes_over_training_calls() -> None:
    admission, network = Admission(), FakeNetwork(1)
    first = Ranks(network.view, 0, network.transports()[0], admission=admission)
    first.agree(lambda: "first")
    assert first.begin_training(elastic=True) is None
    first.agree(lambda: "in training")
    before = admission.journal()
    first.end_training(lambda: {"loss": 0.1})
    first.gather("between")
    assert first.begin_training(elastic=True) is None
    assert before is not None
    joining, after = Joining(before), admission.journal()
    second = Ranks(FakeNetwork(2).view, 1, FakeNetwork(2).transports()[1], admission=Admission(), joining=joining)
    assert second.agree(lambda: None) == "first"

    def launch() -> None:
        assert joining.await_arrival() == (1, True)
        assert after is not None
        joining.go_on(after)

    assert at_once([lambda: second.begin_training(elastic=True), launch])[0] == {"loss": 0.1}
    assert second.gather("own") == ["between", "own"]
    second.end_training(lambda: {"loss": 0.2})  # of the call that it has passed over
    assert not joining.has(CommonStep.TRAINING)


def test_a_rank_whose_program_differs_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal((Rank(0, "a"),), (Entry(CommonStep.AGREEMENT, b"1"),))
    joining = Ranks(FakeNetwork(2).view, 1, FakeNetwork(2).transports()[1], joining=Joining(journal))
    with pytest.raises(NotJoined) as ended, joining.call():
        joining.gather(0)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: a rank that joins must run the same program as the other ranks: expected a decision of rank 0. "
        "Received: values of all ranks\n"
    )


def test_what_is_not_recorded_is_no_part_of_the_journal() -> None:
    admission, network = Admission(), FakeNetwork(1)
    first = Ranks(network.view, 0, network.transports()[0], admission=admission)
    with pytest.raises(ZeroDivisionError), first.unrecorded():
        first.agree(lambda: 1 / 0)
    with first.unrecorded():
        first.gather("unknown to others")
    first.agree(lambda: "known")
    first.begin_training(elastic=True)
    journal = admission.journal()
    assert journal is not None
    assert journal.entries == (Entry(CommonStep.AGREEMENT, b'"known"'),)


def test_models_are_numbered() -> None:
    ranks = FakeNetwork(1).ranks()[0]
    assert [ranks.next_model() for _ in range(3)] == [0, 1, 2]


def test_a_rank_that_joins_stands_beside_those_that_there_were() -> None:
    journal = Journal(
        (Rank(0, "a"),), tuple(Entry(CommonStep.GATHERING, text) for text in (b'[["a", "b"], [5, 6]]', b'[["b"], [7]]'))
    )
    joining = Ranks(FakeNetwork(2).view, 1, FakeNetwork(2).transports()[1], joining=Joining(journal))
    host = joining.own.host
    for values, hosts in (([5, 6], ["a", "b"]), ([7], ["b"])):
        assert joining.gather(0) == [*values, 0]
        assert [rank.host for rank in joining.view.ranks] == [*hosts, host]
        assert (joining.rank, joining.own) == (len(hosts), Rank(len(hosts), host))


def test_work_that_fails_is_no_part_of_the_journal() -> None:
    admission, network = Admission(), FakeNetwork(1)
    ranks = Ranks(network.view, 0, network.transports()[0], admission=admission)

    def fail() -> None:
        ranks.agree(lambda: 1)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        ranks.together(fail)
    ranks.agree(lambda: 2)
    ranks.begin_training(elastic=True)
    journal = admission.journal()
    assert journal is not None
    assert [entry.value for entry in journal.entries] == [b"2"]


def test_training_that_is_not_elastic_lets_none_join() -> None:
    admission = Admission()
    first = Ranks(View(0, (Rank(0, "here"),)), 0, FakeNetwork(1).transports()[0], admission=admission)
    first.begin_training(elastic=False)
    assert admission.journal() is None
    assert not first.join_wanted


def test_another_rank_asks_to_stop() -> None:
    first, second = FakeNetwork(2).ranks()
    assert first.requests() == []
    second.ask_to_stop(15)
    second.ask_to_leave()
    assert [first.requests(), first.requests()] == [[(1, 15), (1, LEAVE)], []]
    first.stop(LOSS)
    assert [first.requests(), first.requests()] == [[(0, LOSS)], []]


def test_ranks_that_do_not_begin_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_START", 0.05)
    first, second, _ = FakeNetwork(3).ranks()
    second.transport.send(bytes(4) + b"1", 0, module.Channel.GATHERING)
    with pytest.raises(CrossbowError, match=r"^expected all 3 ranks .* within 0\.05 s\. Missing: rank 2 \(host2\)$"):
        first.gather(0)


def test_an_exception_on_one_rank_ends_the_call_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_END", 0.0)

    def work(ranks: Ranks) -> str:
        with ranks.call():
            ranks.gather(None)
        try:
            with ranks.call():
                if ranks.rank == 1:
                    raise ValueError("on purpose")
                ranks.gather(None)
        except (ValueError, RankFailedError) as error:
            return str(error)
        return ""

    sentence = "rank 1 (host1) failed: ValueError: on purpose"
    assert on_all(3, work) == [sentence, "on purpose", sentence]


def test_a_failure_of_another_call_does_not_matter() -> None:
    first, second = FakeNetwork(2).ranks()
    with pytest.raises(ValueError, match="on purpose"), second.call():
        raise ValueError("on purpose")
    first.check_others()
    with first.call():
        pass
    with first.call():
        first.check_others()


def test_messages_of_a_call_that_has_failed_are_dropped() -> None:
    """Rank 1 fails before it has received rank 0's decision."""
    first, second = FakeNetwork(2).ranks()
    with first.call():
        first.agree(lambda: "unread")
    with pytest.raises(ValueError, match="on purpose"), second.call():
        raise ValueError("on purpose")
    with second.call():
        with first.call():
            first.agree(lambda: "of the next call")
        assert second.agree(lambda: None) == "of the next call"


def test_messages_of_a_later_call_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has failed before it has sent what rank 1 waits for, and has gone on."""
    monkeypatch.setattr(module, "SECONDS_TO_END", 0.0)
    first, second = FakeNetwork(2).ranks()
    with pytest.raises(ValueError, match="on purpose"), first.call():
        raise ValueError("on purpose")
    with first.call():
        first.agree(lambda: "one")
        first.agree(lambda: "two")
    with pytest.raises(RankFailedError), second.call():
        second.agree(lambda: None)
    with second.call():
        assert [second.agree(lambda: None) for _ in range(2)] == ["one", "two"]


def test_ranks_in_different_calls_can_tell() -> None:
    def work(ranks: Ranks) -> list[int]:
        for _ in range(2 + ranks.rank):
            with ranks.call():
                pass
        return ranks.gather(ranks.call_number, any_call=True)

    assert on_all(2, work) == [[2, 3], [2, 3]]


def test_a_rank_that_has_ended_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_AFTER_END", 0.05)
    first, second = FakeNetwork(2).ranks()
    assert not first.all_have_ended()
    second.transport.send(bytes(4) + b"5", 0, module.Channel.GATHERING)
    second.tell_end()
    assert first.gather(4) == [4, 5]
    assert first.all_have_ended()
    with pytest.raises(RankFailedError, match=r"^the program of rank 1 \(host1\) has ended$"):
        first.gather(6)


@pytest.mark.parametrize("answers", [True, False])
def test_ranks_end_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """Rank 1 notices the loss of rank 2 before rank 0's answer, which may be on its way, or does not come."""
    monkeypatch.setattr(module, "SECONDS_AFTER_CHANGE", 10.0 if answers else 0.1)
    processes = Processes("abc")
    first, second, _ = processes.ranks()
    processes.lose(2)
    if not answers:
        for ranks in (first, second):
            with pytest.raises(ViewChangedError):
                ranks.end_together()
        return
    answer = threading.Timer(0.1, first.transport.send, [bytes(4) + b"[null, null, null]", 1, Channel.GATHERING])
    answer.start()
    second.end_together()
    answer.join()
