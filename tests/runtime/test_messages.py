"""Messages with vectors between two ranks: a session from its beginning to its end, and how it fails."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from crossbow.cluster.members import ViewChangedError
from crossbow.runtime import messages
from crossbow.runtime.backend import Arriving, Leaving
from crossbow.runtime.flags import Flags
from crossbow.runtime.messages import Kind, Messages, Note
from crossbow.types import CrossbowError
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.support import SECONDS, until


class End:
    """One rank's messages, and what they have brought."""

    def __init__(self, network: FakeNetwork, rank: int, *, rare: bool = False) -> None:
        self.flags, self.vector = Flags(1, 1), np.zeros(5, np.float32)
        self.received: list[tuple[int, Note, Any]] = []
        self.failures: list[BaseException] = []
        self.messages = Messages(network.ranks()[rank], [1 - rank], self.flags, rare=rare)
        self.messages.connect(lambda sender, note: Arriving(self.vector), self.receive, self.failures.append)

    def receive(self, sender: int, note: Note) -> None:
        if note.numbers == (13.0,):
            raise ValueError("on purpose")
        self.received.append((sender, note, self.vector.copy()))


def ends(**options: Any) -> tuple[End, End]:
    network = FakeNetwork(2)
    return End(network, 0, **options), End(network, 1, **options)


def test_messages_arrive_in_order_until_both_have_ended() -> None:
    first, second = ends()
    for round_of in range(3):  # one session after the other
        for end in (first, second):
            end.messages.begin()
            end.messages.begin()  # no effect
        for number in range(4):
            vector = Leaving(np.full(5, number, np.float32))
            first.messages.send(1, Note(Kind.VECTOR, number, (0.1, round_of)), vector)
        first.messages.send(1, Note(Kind.END))
        second.messages.send(0, Note(Kind.END, numbers=(7,)))
        at_once([first.messages.end, second.messages.end])
        first.messages.flush()
        notes, vectors = [note for _, note, _ in second.received], [vector[0] for _, _, vector in second.received]
        assert notes == [*(Note(Kind.VECTOR, number, (0.1, round_of), True) for number in range(4)), Note(Kind.END)]
        assert vectors[:4] == [0, 1, 2, 3]
        assert first.received == [(1, Note(Kind.END, numbers=(7,)), first.received[0][2])]
        first.received.clear()
        second.received.clear()


@pytest.mark.parametrize("late", [False, True], ids=["in the session", "after it"])
def test_messages_behind_one_whose_vector_is_copied_stay_behind(late: bool) -> None:
    """Only the session's thread waits for the copy or, of what is sent last, the thread that ends the session."""
    first, second = ends()
    copied, waited = threading.Event(), list[threading.Thread]()
    vector = np.zeros(5, np.float32)

    def wait() -> None:
        assert copied.wait(SECONDS)
        waited.append(threading.current_thread())
        vector[:] = 3

    for end in (first, second):
        end.messages.begin()
    session = first.messages._thread
    if late:
        second.messages.send(0, Note(Kind.END))
        until(lambda: not session.is_alive())  # type: ignore[union-attr]
    first.messages.send(1, Note(Kind.VECTOR, 0), Leaving(vector, wait))
    first.messages.send(1, Note(Kind.REST, 1))
    first.messages.send(1, Note(Kind.VECTOR, 2), Leaving(np.full(5, 4, np.float32)))
    first.messages.send(1, Note(Kind.END))
    if not late:
        second.messages.send(0, Note(Kind.END))
    assert not second.received
    copied.set()
    first.messages.end()
    first.messages.flush()
    second.messages.end()
    assert [note.kind for _, note, _ in second.received] == [Kind.VECTOR, Kind.REST, Kind.VECTOR, Kind.END]
    assert [vector[0] for _, _, vector in second.received] == [3, 3, 4, 4]
    assert waited == [threading.current_thread() if late else session]


def test_what_a_failed_session_has_not_sent_is_not_sent_in_the_next_one() -> None:
    first, second = ends()
    first.messages.begin()
    first.messages.give_up()
    first.messages.send(1, Note(Kind.VECTOR, 0), Leaving(np.zeros(5, np.float32), lambda: None))
    for end in (first, second):
        end.messages.begin()
    first.messages.send(1, Note(Kind.END))
    second.messages.send(0, Note(Kind.END))
    at_once([first.messages.end, second.messages.end])
    assert [note.kind for _, note, _ in second.received] == [Kind.END]


def test_an_exception_ends_the_session() -> None:
    first, second = ends()
    second.messages.begin()
    first.messages.send(1, Note(Kind.REST, 0, (13.0,)))
    until(lambda: bool(second.failures))
    assert str(second.failures[0]) == "on purpose"
    with pytest.raises(CrossbowError, match="the exchange between ranks failed: on purpose"):
        second.messages.end()


def test_a_rank_that_is_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SECONDS_TO_WAIT", 0.05)
    first, _ = ends()
    first.messages.begin()
    with pytest.raises(CrossbowError, match=r"waited 0\.05 s for a message of rank 1 \(host1\)"):
        first.messages.end()
    assert len(first.failures) == 1


def test_messages_may_be_rare_but_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SECONDS_TO_WAIT", 0.05)
    first, second = ends(rare=True)
    first.messages.begin()
    assert first.messages._thread is not None
    first.messages._thread.join(0.3)
    assert not first.failures
    second.messages.send(0, Note(Kind.REST, 0))
    until(lambda: bool(first.received))
    with pytest.raises(CrossbowError, match=r"waited 0\.05 s"):
        first.messages.end()


def test_giving_up_and_closing_end_the_thread() -> None:
    first, second = ends()
    for end in (first, second):
        end.messages.begin()
    first.messages.give_up()
    assert first.messages._thread is None
    second.flags.raise_abort()
    with pytest.raises(CrossbowError, match="the context was closed"):
        second.messages.end()
    assert not first.failures
    assert not second.failures


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ViewChangedError("ranks have left"), ViewChangedError, "^ranks have left$"),
        (ValueError("on purpose"), CrossbowError, "^the exchange between ranks failed: on purpose$"),
        (None, CrossbowError, "^the context was closed during an exchange between ranks$"),
    ],
    ids=repr,
)
def test_an_end_that_is_none(error: BaseException | None, kind: type[Exception], text: str) -> None:
    """Said once: the next session begins anew."""
    first, _ = ends()
    first.messages._error = error
    with pytest.raises(kind, match=text) as caught:
        first.messages.end()
    assert caught.value is error or caught.value.__cause__ is error
    assert first.messages._error is None
