"""The transport over Ray's actors, without Ray: letters are put into mailboxes directly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from crossbow.cluster.members import Changes, GivenUp, Lost, Rank, ViewChangedError
from crossbow.cluster.ray.transport import CALL, LEAST_BLOCK
from crossbow.cluster.sums import Waiting, tree
from crossbow.cluster.transport import RESULTS, Channel
from tests.cluster.fake_network import at_once
from tests.cluster.ray.processes import Processes
from tests.cluster.test_transport import check_messages


def test_messages_and_arrays() -> None:
    first, second = Processes("ab").transports
    check_messages(first, second)
    received = np.zeros(3, np.float16)
    pending = second.receive_array(received, 0, Channel.PARTIAL)
    sent = np.arange(3).astype(np.float16)
    assert first.send_array(sent, 1, Channel.PARTIAL).done()
    sent[...] = 7  # it was copied
    assert pending.done()
    assert received.tolist() == [0, 1, 2]


@pytest.mark.parametrize("ranks", [2, 4, 16, 1000])
@pytest.mark.parametrize("nbytes", [64, 4 << 20, 100 << 20])
def test_a_vector_is_divided_so_that_its_sum_takes_the_shortest_time(ranks: int, nbytes: int) -> None:
    block = Processes(["host"] * ranks).transports[0].block(nbytes)

    def seconds(blocks: int) -> float:
        return (2 * (ranks - 1) + blocks - 1) * (CALL + nbytes / blocks)

    assert block >= LEAST_BLOCK
    best = min(range(1, max(1, nbytes // LEAST_BLOCK) + 1), key=seconds)
    assert seconds(math.ceil(nbytes / block)) == pytest.approx(seconds(best), rel=0.02)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_a_tree_has_the_same_bits_on_all_ranks(size: int) -> None:
    vectors = [np.random.default_rng(number).normal(size=5).astype(np.float32) for number in range(size)]
    expected = np.sum(vectors, axis=0, dtype=np.float64)
    transports = Processes(["host"] * size).transports
    at_once(
        [
            lambda each=each, vector=vector: tree(each, vector, Waiting(seconds=60))  # type: ignore[misc]
            for each, vector in zip(transports, vectors, strict=True)
        ]
    )
    assert len({vector.tobytes() for vector in vectors}) == 1
    np.testing.assert_allclose(vectors[0], expected, rtol=1e-5)


def test_a_rank_that_waits_for_a_lost_one_is_told() -> None:
    processes = Processes("abc")
    ranks = processes.ranks()
    processes.lose(0)
    for each in ranks[1:]:
        with pytest.raises(ViewChangedError):
            each.agree(lambda: 0)
        assert each.regroup() == Changes((Lost(Rank(0, "a"), "killed"),))
    assert [(each.rank, each.size) for each in ranks[1:]] == [(0, 2), (1, 2)]
    assert at_once([lambda: ranks[1].agree(lambda: 5), lambda: ranks[2].agree(lambda: 6)]) == [5, 5]


def test_several_losses_are_reported_together() -> None:
    processes = Processes("abc", needed=2)
    ranks = processes.ranks()
    processes.lose(1)
    processes.lose(2)
    assert [str(lost.rank) for lost in ranks[0].regroup().lost] == ["rank 1 (b)", "rank 1 (c)"]
    assert ranks[0].regroup() == Changes()
    assert (ranks[0].view.number, ranks[0].several, ranks[0].view.enough) == (2, False, False)


def test_a_rank_that_has_joined_and_left_has_only_left() -> None:
    processes = Processes("abc")
    roster, first = processes.roster, processes.transports[0]
    added = [roster.add(host) for host in "de"]
    for change in (*map(roster.join, added), roster.lose(1, "killed"), roster.lose(added[0], "killed")):
        first.change(change)
    changes = first.regroup()
    assert [str(lost.rank) for lost in changes.lost] == ["rank 1 (b)", "rank 2 (d)"]
    assert changes.joined == (Rank(2, "e"),)
    assert first.view.ranks[-1] in changes.joined


def test_a_process_that_others_have_given_up_does_not_go_on() -> None:
    processes = Processes("ab")
    change = processes.roster.lose(1, "killed")
    processes.transports[1].change(change)
    with pytest.raises(GivenUp) as raised:
        processes.transports[1].regroup()
    assert raised.value.code == 4


@pytest.mark.parametrize("before", [True, False], ids=["waits", "sends"])
def test_a_process_that_others_cannot_reach_is_refused_and_told(
    before: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = Processes("abc")
    ranks = processes.ranks()
    processes.lose(1, "its node has left the cluster")
    if before:
        ranks[2].regroup()  # which tells the lost one
    else:
        processes.transports[2].regroup()
        processes.transports[1].given_up = False  # the letter that tells it was lost, too
        ranks[1].transport.send(b"late", 2, RESULTS)
    assert ranks[2].transport.receive(RESULTS) is None
    with pytest.raises(ViewChangedError):
        ranks[1].check_others()
    with pytest.raises(GivenUp):
        ranks[1].regroup()
    sentence = "error: the other ranks go on without this one, because they could not reach it\n"
    assert capsys.readouterr().err == sentence


def test_a_rank_that_has_not_heard_of_a_view_is_not_given_up() -> None:
    processes = Processes("abc")
    first, _, third = processes.ranks()
    processes.lose(1)
    first.regroup()
    third.transport.send(b"late", 0, RESULTS)
    assert first.transport.receive(RESULTS) is None
    assert third.regroup() == Changes((Lost(Rank(1, "b"), "killed"),))


def test_abort_ends_the_program() -> None:
    with pytest.raises(SystemExit) as raised:
        Processes("a").transports[0].abort(2)
    assert raised.value.code == 2
