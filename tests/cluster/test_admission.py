"""The journal of rank 0, and the pause for a rank that joins."""

from __future__ import annotations

import threading

import pytest

from crossbow import CrossbowError
from crossbow.cluster.admission import Admission, CannotJoinError, CommonStep, Entry, Joining, Journal
from crossbow.cluster.members import Rank
from tests.support import until

RANKS = (Rank(0, "a"), Rank(1, "b"))
ONE, TWO = Entry(CommonStep.AGREEMENT, b"one"), Entry(CommonStep.GATHERING, b"two")
ENDED = Entry(CommonStep.TRAINING, b"result")


def begun() -> Admission:
    """In the first training call, after two decisions."""
    admission = Admission()
    admission.note(*ONE)
    recording = admission.record(on=False)
    admission.note(CommonStep.AGREEMENT, b"left out")
    admission.record(on=recording)
    admission.note(*TWO)
    assert admission.journal() is None
    admission.open(RANKS)
    admission.note(CommonStep.AGREEMENT, b"in training")
    return admission


def test_the_journal_has_what_was_done_before_a_training_call() -> None:
    admission = begun()
    assert admission.journal() == Journal(RANKS, (ONE, TWO))
    admission.end_training(b"result")
    assert admission.journal() is None
    admission.note(*ONE)
    admission.open(RANKS[:1])
    assert admission.journal() == Journal(RANKS[:1], (ONE, TWO, ENDED, ONE))


def test_none_can_join_after_the_end() -> None:
    admission = begun()
    admission.close()
    admission.end_training(b"result")
    admission.note(*ONE)
    assert not admission.record(on=True)
    assert not admission.record(on=True)
    admission.open(RANKS)
    assert admission.journal() is None
    assert admission.request(2, trains=True) == "the other ranks have come to a place where none can join"


def asked(admission: Admission, *, trains: bool = True) -> tuple[threading.Thread, list[Journal | str | None]]:
    """A request of a rank that knows two entries, and its answer."""
    answers: list[Journal | str | None] = []
    thread = threading.Thread(target=lambda: answers.append(admission.request(2, trains=trains)))
    thread.start()
    return thread, answers


def test_a_request_waits_for_the_pause() -> None:
    admission = begun()
    thread, answers = asked(admission)
    until(lambda: admission.wanted)
    admission.pause()
    thread.join(60)
    assert (answers, admission.wanted) == ([None], False)


def test_a_request_waits_until_training_ends_or_begins() -> None:
    admission = begun()
    thread, answers = asked(admission)
    until(lambda: admission.wanted)
    admission.end_training(b"result")
    thread.join(60)
    assert (answers, admission.wanted) == ([Journal(RANKS, (ONE, TWO, ENDED))], False)

    between = Admission()
    for entry in (ONE, TWO):
        between.note(*entry)
    thread, answers = asked(between)
    between.open(RANKS)
    until(lambda: between.wanted)
    between.close()
    thread.join(60)
    assert (answers, between.wanted) == (["the other ranks have come to a place where none can join"], False)


def test_a_pause_may_come_before_the_request() -> None:
    admission = begun()
    admission.pause()
    assert isinstance(admission.request(1, trains=True), Journal)  # which is still before the call
    assert admission.request(2, trains=True) is None
    thread, answers = asked(admission)  # one pause lets one rank join
    until(lambda: admission.wanted)
    assert not answers
    admission.close()
    thread.join(60)


def test_a_program_that_decides_more_before_training_is_another_one() -> None:
    assert begun().request(2, trains=False) == (
        "a rank that joins must run the same program as the other ranks: expected a training call. Received: something "
        "else before it"
    )


def test_a_rank_that_joins_goes_through_the_journal() -> None:
    joining = Joining(Journal(RANKS, (ONE, TWO, ENDED)))
    assert joining.has(ONE.step)
    assert joining.next(ONE.step) == b"one"
    with pytest.raises(
        CannotJoinError,
        match=r"^a rank that joins must run the same program as the other ranks: expected values of all ranks\. "
        r"Received: a training call$",
    ):
        joining.next(CommonStep.TRAINING)
    assert joining.next(TWO.step) == b"two"
    assert joining.next(CommonStep.TRAINING) == b"result"
    assert not joining.has(CommonStep.WORK)


@pytest.mark.parametrize("trains", [True, False])
def test_the_launcher_waits_for_the_end_of_the_journal(trains: bool) -> None:
    joining, arrivals = Joining(Journal(RANKS, (ONE,))), list[tuple[int, bool] | None]()
    joining.next(ONE.step)
    thread = threading.Thread(target=lambda: arrivals.append(joining.await_arrival()))
    thread.start()
    assert not joining.has(CommonStep.TRAINING if trains else CommonStep.AGREEMENT)
    thread.join(60)
    assert arrivals == [(1, trains)]
    joining.go_on(Journal(RANKS, (ONE, TWO)))
    assert joining.has(CommonStep.GATHERING)
    thread = threading.Thread(target=lambda: arrivals.append(joining.await_arrival()))
    thread.start()
    joining.end()
    thread.join(60)
    assert arrivals[1:] == [None]


def test_a_rank_that_cannot_join_is_told_why() -> None:
    joining = Joining(Journal(RANKS, ()))
    assert not joining.has(CommonStep.TRAINING)
    joining.go_on("no place")
    with pytest.raises(CrossbowError, match=r"^no place$"):
        joining.has(CommonStep.TRAINING)


def test_a_rank_that_has_joined_goes_on_with_the_journal() -> None:
    admission, joining = Admission(), Joining(Journal(RANKS, (ONE, TWO)))
    admission.take_over(joining)
    admission.open(RANKS)
    assert admission.journal() == Journal(RANKS, (ONE, TWO))
