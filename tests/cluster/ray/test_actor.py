"""The actor of a rank, without Ray: its methods are called directly."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossbow.cluster import output, process, ranks
from crossbow.cluster.launch import RankLaunch
from crossbow.cluster.members import Rank, RankFailedError, View
from crossbow.cluster.output import PrefixedLines
from crossbow.cluster.program import RankProgram
from crossbow.cluster.ray import actor
from crossbow.cluster.ray.actor import RankProcess
from crossbow.cluster.ray.roster import Roster
from crossbow.cluster.ray.transport import ViewChange
from crossbow.cluster.transport import RESULTS


class Call:
    """A method of an actor elsewhere, which is called at once."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def options(self, concurrency_group: str) -> Call:
        assert concurrency_group in actor.GROUPS
        return self

    def remote(self, *arguments: Any) -> None:
        self._method(*arguments)


class Peer:
    """An actor's handle."""

    def __init__(self, rank: RankProcess) -> None:
        self.deliver = Call(rank.deliver)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[RankProcess]]:
    """Two connected processes; this one becomes the second."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(process, "_joined", [])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ["CROSSBOW_FAULT"] = "kill:1@2"
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(output, "SECONDS_BEFORE_ERRORS", 0.0)
    monkeypatch.chdir(tmp_path)
    roster = Roster(["a", "b"])
    found = [RankProcess(number, {"CROSSBOW_X": "1"}, ["/modules"], str(tmp_path)) for number in (0, 1)]
    for each, launch in zip(found, roster.launches(), strict=True):
        each.connect(roster.change, [Peer(other) for other in found], launch)
    yield found
    signal.signal(signal.SIGTERM, handler)


def test_it_prepares_the_process(pair: list[RankProcess]) -> None:
    assert (os.environ["CROSSBOW_X"], os.environ["CROSSBOW_RANK"]) == ("1", "1")
    assert "OMP_NUM_THREADS" not in os.environ
    assert "CROSSBOW_FAULT" not in os.environ
    assert sys.path[0] == "/modules"
    assert pair[0].ready() == os.getpid()
    ranks = process.join()
    assert (ranks.rank, ranks.size, ranks.own.host) == (1, 2, "b")


def test_messages_reach_the_other_rank(pair: list[RankProcess]) -> None:
    first, second = (each._transport for each in pair)
    assert first is not None
    assert second is not None
    first.send(b"text", 1, RESULTS)
    assert second.receive(RESULTS) == (0, b"text")
    roster = Roster(["a", "b"])
    pair[0].change_view(roster.lose(1, "killed"), [Peer(each) for each in pair])
    assert first.changed()


def test_a_request_to_stop_lasts_until_the_rank_is_rank_0(pair: list[RankProcess]) -> None:
    peers, roster = [Peer(each) for each in pair], Roster(["a", "b"])
    pair[1].request_stop(15)
    pair[1].change_view(roster.lose(0, "killed"), peers)
    ranks = process.join()
    ranks.regroup()
    assert ranks.is_first
    assert [ranks.requests(), ranks.requests()] == [[(0, 15)], []]


def test_a_process_joins_with_the_journal_of_rank_0(pair: list[RankProcess], tmp_path: Path) -> None:
    roster = Roster(["a", "b"])
    for each, launch in zip(pair, roster.launches(), strict=True):
        each.connect(roster.change, [Peer(other) for other in pair], launch, grows=True)
        assert each.journal() is None
    first = pair[0]._ranks
    assert first is not None
    first.agree(lambda: "decided")
    first.begin_training(elastic=True)
    assert pair[1].journal() is None
    journal = pair[0].journal()
    assert journal is not None
    assert journal.ranks == roster.change.view.ranks
    process_number = roster.add("c")
    third = RankProcess(process_number, {}, [], str(tmp_path))
    change = ViewChange(View(0, (*journal.ranks, Rank(2, "c"))), (0, 1, process_number))
    peers = [Peer(each) for each in (*pair, third)]
    third.join(change, peers, roster.launch_of(process_number, 2), journal)
    ranks = process.join()
    assert (ranks.rank, ranks.joins, ranks.agree(lambda: "other")) == (2, True, "decided")
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(2)")
    assert third.run(RankProgram(str(script), (), is_module=False)) == 2
    assert third.await_arrival() is None
    joined = roster.join(process_number)
    for each in (*pair, third):
        each.change_view(joined, peers)
        assert each._transport is not None
        assert each._transport.regroup().joined == (Rank(2, "c"),)
    first.transport.send(b"text", 2, RESULTS)
    assert ranks.transport.receive(RESULTS) == (0, b"text")


def test_a_single_rank_is_connected_if_others_may_join(pair: list[RankProcess]) -> None:
    pair[0].connect(Roster(["a"]).change, [Peer(pair[0])], RankLaunch(), grows=True)
    assert process.join().connected
    assert not process.join().several


def test_sigterm_asks_a_rank_to_leave_and_the_second_one_ends_it(
    pair: list[RankProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    assert not process.join().asked_to_leave
    os.kill(os.getpid(), signal.SIGTERM)
    assert process.join().asked_to_leave
    assert ended == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert ended == [143]


def test_a_rank_that_is_given_up_ends_its_process(
    pair: list[RankProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended, over = [], threading.Event()

    def end(status: int) -> None:
        ended.append(status)
        over.set()

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(actor, "SECONDS_TO_END", 0.0)
    script = tmp_path / "script.py"
    script.write_text("from crossbow import cluster\ncluster.join().regroup()")
    first = pair[0]._transport
    assert first is not None
    first.change(Roster(["a", "b"]).lose(1, "killed"))
    first.regroup()
    assert pair[1].run(RankProgram(str(script), (), is_module=False)) == 4
    assert over.wait(60)
    assert ended == [4]
    (error, text), *_ = pair[1].take_output()[0]
    assert error
    assert text.endswith("error: the other ranks go on without this one, because they could not reach it\n")


def test_output_and_traceback_of_a_program(pair: list[RankProcess], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('text', flush=True)\nraise ValueError('on purpose')")
    assert pair[1].run(RankProgram(str(script), (), is_module=False)) == 1
    texts, more = pair[1].take_output()
    assert not more
    assert texts[0] == (False, "text\n")
    error = "".join(text for is_error, text in texts if is_error)
    assert error.endswith("[rank 1 b] ValueError: on purpose\n")
    assert isinstance(sys.stderr, PrefixedLines)


def test_a_rank_alone_is_not_connected(pair: list[RankProcess]) -> None:
    pair[0].connect(Roster(["a"]).change, [], RankLaunch())
    assert not process.join().connected


@pytest.mark.parametrize(("code", "fails"), [("", True), ("exit(2)", False)])
def test_others_that_wait_for_a_rank_whose_program_has_ended_fail(
    pair: list[RankProcess], tmp_path: Path, code: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "SECONDS_AFTER_END", 0.0)
    script = tmp_path / "script.py"
    script.write_text(code)
    assert pair[1].run(RankProgram(str(script), (), is_module=False)) == (2 if code else 0)
    first = pair[0]._ranks
    assert first is not None
    if not fails:
        first.check_others()  # the launcher ends all
        return
    with pytest.raises(RankFailedError, match=r"the program of rank 1 \(b\) has ended"):
        first.check_others()
