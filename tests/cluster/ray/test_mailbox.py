"""Letters reach the receiver of their view, source and channel, in order."""

from __future__ import annotations

import numpy as np

from crossbow.cluster.ray.mailbox import Envelope, Mailbox
from crossbow.cluster.transport import RESULTS, Channel


def message(text: bytes, *, era: int = 0, source: int = 1) -> Envelope:
    return Envelope(era, source, RESULTS, False, text)


def numbers(values: list[float], source: int = 1) -> Envelope:
    return Envelope(0, source, Channel.PARTIAL, True, np.array(values, np.float32).view(np.uint8))


def test_messages_of_a_rank_are_taken_in_order() -> None:
    mailbox = Mailbox()
    for letter in (message(b"one"), message(b"other", source=2), message(b"two")):
        mailbox.deliver(letter)
    assert mailbox.take(RESULTS, 2) == (2, b"other")
    assert mailbox.take(Channel.AGREEMENT, None) is None
    assert [mailbox.take(RESULTS, None) for _ in range(3)] == [(1, b"one"), (1, b"two"), None]


def test_arrays_are_received_in_place_before_and_after_they_arrive() -> None:
    mailbox, arrays = Mailbox(), [np.zeros(2, np.float32) for _ in range(3)]
    first, second = (mailbox.post(array, 1, Channel.PARTIAL) for array in arrays[:2])
    mailbox.deliver(numbers([9, 9], source=2))
    assert not first.done()
    mailbox.deliver(numbers([1, 2]))
    assert (first.done(), second.done()) == (True, False)
    mailbox.deliver(numbers([3, 4]))
    mailbox.deliver(numbers([5, 6]))
    assert mailbox.post(arrays[2], 1, Channel.PARTIAL).done()
    assert [array.tolist() for array in arrays] == [[1, 2], [3, 4], [5, 6]]


def test_letters_of_older_eras_are_dropped_and_those_of_newer_ones_wait() -> None:
    mailbox, array = Mailbox(), np.zeros(2, np.float32)
    receipt = mailbox.post(array, 1, Channel.PARTIAL)
    mailbox.deliver(message(b"new", era=2))
    mailbox.deliver(message(b"old"))
    mailbox.begin(2)
    mailbox.deliver(message(b"late", era=1))
    mailbox.deliver(message(b"next", era=3))
    mailbox.deliver(numbers([1, 2]))
    assert mailbox.take(RESULTS, None) == (1, b"new")
    assert mailbox.take(RESULTS, None) is None
    assert not receipt.done()
    mailbox.begin(3)
    assert mailbox.take(RESULTS, None) == (1, b"next")
