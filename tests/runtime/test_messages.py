"""Messages with vectors between two ranks: a session from its beginning to its end, and how it fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.cluster.members import ViewChangedError
from crossbow.runtime import messages
from crossbow.runtime.flags import Flags
from crossbow.runtime.messages import Kind, Messages, Note
from crossbow.types import CrossbowError
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.support import until


class End:
    """One rank's messages, and what they have brought."""

    def __init__(self, network: FakeNetwork, rank: int, *, rare: bool = False) -> None:
        self.flags, self.vector = Flags(1, 1), np.zeros(5, np.float32)
        self.received: list[tuple[int, Note, Any]] = []
        self.failures: list[BaseException] = []
        self.messages = Messages(network.ranks()[rank], [1 - rank], self.flags, rare=rare)
        self.messages.connect(lambda sender, note: self.vector, self.receive, self.failures.append)

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
            first.messages.send(1, Note(Kind.VECTOR, number, (0.1, round_of)), np.full(5, number, np.float32))
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
