"""What a transport must do, for the fake one that other tests use; tests/cluster/test_mpi.py has MPI's."""

from __future__ import annotations

import numpy as np

from crossbow.cluster.transport import RESULTS, Channel, Transport
from tests.cluster.fake_network import FakeNetwork


def check_messages(first: Transport, second: Transport) -> None:
    assert second.receive(Channel.REQUEST) is None
    for message in (b"one", b"two"):
        first.send(message, 1, Channel.REQUEST)
    first.send(b"other", 1, RESULTS)
    assert second.receive(RESULTS, 0) == (0, b"other")
    assert [second.receive(Channel.REQUEST), second.receive(Channel.REQUEST)] == [(0, b"one"), (0, b"two")]
    assert second.receive(Channel.REQUEST) is None


def test_messages_of_a_channel_arrive_in_order() -> None:
    check_messages(*FakeNetwork(2).transports())


def test_an_array_is_received_in_place() -> None:
    first, second = FakeNetwork(2).transports()
    received = np.zeros(3, np.float32)
    pending = second.receive_array(received, 0, Channel.PARTIAL)
    assert not pending.done()
    first.send_array(np.arange(3, dtype=np.float32), 1, Channel.PARTIAL)
    assert pending.done()
    assert received.tolist() == [0, 1, 2]


def test_channels_have_different_numbers() -> None:
    assert len({int(channel) for channel in Channel}) == len(Channel.__members__)
