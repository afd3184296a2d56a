"""The journal of rank 0, and the pause for a rank that joins."""

from __future__ import annotations

import threading

import pytest

from crossbow import CrossbowError
from crossbow.cluster.admission import Admission, Joining, Journal
from crossbow.cluster.members import Rank
from tests.support import until

RANKS = (Rank(0, "a"), Rank(1, "b"))


def test_the_journal_has_what_was_decided_before_training() -> None:
    admission = Admission()
    admission.note(b"one")
    recording = admission.record(on=False)
    admission.note(b"left out")
    admission.record(on=recording)
    admission.note(b"two")
    assert admission.journal() is None
    admission.open(RANKS)
    admission.note(b"in training")
    assert admission.journal() == Journal(RANKS, (b"one", b"two"))
    admission.close()
    assert admission.journal() is None


def test_ranks_join_the_first_training_call_only() -> None:
    admission = Admission()
    admission.open(RANKS)
    admission.close()
    admission.open(RANKS)
    assert admission.journal() is None
    tested_before = Admission()
    tested_before.close()
    tested_before.open(RANKS)
    assert tested_before.journal() is None


@pytest.mark.parametrize("paused", [True, False])
def test_a_request_waits_for_the_pause_or_the_end(paused: bool) -> None:
    admission, answers = Admission(), list[bool]()
    admission.open(RANKS)
    thread = threading.Thread(target=lambda: answers.append(admission.request()))
    thread.start()
    until(lambda: admission.wanted)
    if paused:
        admission.pause()
    else:
        admission.close()
    thread.join(60)
    assert answers == [paused]
    assert not admission.wanted


def test_a_pause_may_come_before_the_request() -> None:
    admission = Admission()
    admission.open(RANKS)
    admission.pause()
    assert admission.request()


def test_a_rank_that_joins_takes_the_decisions_in_order() -> None:
    joining = Joining(Journal(RANKS, (b"one", b"two")))
    assert joining.next() == b"one"
    with pytest.raises(
        CrossbowError, match=r"^expected the same program .* that needs fewer decisions before training$"
    ):
        joining.arrive()
    assert joining.next() == b"two"
    with pytest.raises(
        CrossbowError, match=r"^expected the same program .* that needs more decisions before training$"
    ):
        joining.next()


@pytest.mark.parametrize("arrives", [True, False])
def test_the_launcher_waits_until_the_program_trains_or_ends(arrives: bool) -> None:
    joining, answers = Joining(Journal(RANKS, ())), list[bool]()
    thread = threading.Thread(target=lambda: answers.append(joining.await_arrival()))
    thread.start()
    if arrives:
        joining.arrive()
    joining.end()
    thread.join(60)
    assert answers == [arrives]
