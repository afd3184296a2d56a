"""The cost of an exchange, compared with one that is simulated message by message."""

from __future__ import annotations

import doctest
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from crossbow import ConfigurationError
from crossbow.synch import cost, exchange_cost
from crossbow.synch.cost import ORDERS, ExchangeCost

LATENCY, BANDWIDTH = 0.25, 64.0


def test_examples() -> None:
    assert doctest.testmod(cost).failed == 0


class Message(NamedTuple):
    """A part of the vector, bytes `start` to `stop`, which is added to the receiver's or replaces it."""

    sender: int
    receiver: int
    part: int
    start: int
    stop: int
    adds: bool


def chain(hosts: int, size: int) -> Iterator[Message]:
    for i in range(hosts - 1):
        yield Message(i, i + 1, 0, 0, size, adds=True)
    for i in reversed(range(hosts - 1)):
        yield Message(i + 1, i, 0, 0, size, adds=False)


def tree(hosts: int, size: int) -> Iterator[Message]:
    spread: list[Message] = []
    distance = 1
    while distance < hosts:
        for i in range(0, hosts - distance, 2 * distance):
            yield Message(i + distance, i, 0, 0, size, adds=True)
            spread.append(Message(i, i + distance, 0, 0, size, adds=False))
        distance *= 2
    yield from reversed(spread)


def ring(hosts: int, size: int) -> Iterator[Message]:
    """Parts that differ by one byte at most."""
    ends = [size * part // hosts for part in range(hosts + 1)]
    for turn in range(2 * (hosts - 1)):
        for i in range(hosts):
            part = (i - turn) % hosts
            yield Message(i, (i + 1) % hosts, part, ends[part], ends[part + 1], adds=turn < hosts - 1)


SENT: dict[str, Callable[[int, int], Iterator[Message]]] = {"chain": chain, "tree": tree, "ring": ring}


def carried_out(order: str, hosts: int, size: int) -> tuple[ExchangeCost, Any]:
    """The messages of an exchange, each as early as possible: when the sender has what it sends, and the ports of both
    are free. Returns the cost, and the hosts' vectors afterwards."""
    vectors = np.array([np.arange(size) + 1000 * i for i in range(hosts)])
    has = defaultdict[tuple[int, int], tuple[float, int]](lambda: (0.0, 0))  # when a part is complete, its round
    sending, receiving = defaultdict[int, float](float), defaultdict[int, float](float)
    end, rounds, sent, under_way = 0.0, 0, 0, list[tuple[Message, Any]]()
    for message in SENT[order](hosts, size):
        sender, receiver, part, start, stop, _ = message
        ready, round_before = has[sender, part]
        arrival = max(ready, sending[sender], receiving[receiver]) + LATENCY + (stop - start) / BANDWIDTH
        sending[sender] = receiving[receiver] = arrival
        earlier, its_round = has[receiver, part]
        has[receiver, part] = max(earlier, arrival), max(its_round, round_before) + 1
        under_way.append((message, vectors[sender, start:stop].copy()))
        if order != "ring" or len(under_way) == hosts:  # on a ring, all send at once
            for (_, to, _, first, last, add), values in under_way:
                vectors[to, first:last] = vectors[to, first:last] * add + values
            under_way.clear()
        end, rounds, sent = max(end, arrival), max(rounds, round_before + 1), sent + stop - start
    return ExchangeCost(sent, rounds, end), vectors


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 5, 7, 8, 13, 16, 33])
@pytest.mark.parametrize("order", ORDERS)
def test_the_cost_is_that_of_all_messages(order: str, hosts: int) -> None:
    for size in (1, 5, 64, 100, 1000):
        made, vectors = carried_out(order, hosts, size)
        expected = exchange_cost(hosts, size, LATENCY, BANDWIDTH, order)
        assert made.bytes == expected.bytes
        assert made.seconds == pytest.approx(expected.seconds, rel=1e-12)
        np.testing.assert_array_equal(vectors, [hosts * np.arange(size) + 1000 * sum(range(hosts))] * hosts)


@pytest.mark.parametrize("hosts", [2, 3, 5, 8])
@pytest.mark.parametrize("order", ["chain", "ring"])
def test_rounds_are_the_transfers_that_follow_one_another(order: str, hosts: int) -> None:
    assert carried_out(order, hosts, 64)[0].rounds == exchange_cost(hosts, 64, 0, 1, order).rounds


def test_by_hand() -> None:
    """Five hosts, 100 bytes, ¼ s each way, 50 bytes/s: a transfer takes 2.25 s, of a fifth of the vector 0.65 s."""
    costs = {order: exchange_cost(5, 100, 0.25, 50.0, order) for order in ORDERS}
    assert costs["chain"] == (800, 8, 18.0)
    assert costs["tree"] == (800, 6, 13.5)
    assert costs["ring"] == (800, 8, pytest.approx(5.2))
    assert [exchange_cost(1, 100, 0.25, 50.0, order) for order in ORDERS] == [(0, 0, 0.0)] * 3
    assert [exchange_cost(3, 0, 0.25, 50.0, order) for order in ORDERS] == [(0, 4, 1.0)] * 3
    assert [exchange_cost(1, 10**400, 0.25, 50.0, order) for order in ORDERS] == [(0, 0, 0.0)] * 3


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"hosts": 0}, "exchange_cost: hosts must be an integer ≥ 1. Received: hosts=0"),
        ({"hosts": 2.0}, "hosts must be an integer ≥ 1"),
        ({"bytes": -1}, "bytes must be an integer ≥ 0"),
        ({"bytes": 8.0}, "bytes must be an integer ≥ 0"),
        ({"latency": -1.0}, "latency must be a finite number ≥ 0"),
        ({"latency": float("inf")}, "latency must be a finite number ≥ 0"),
        ({"bandwidth": 0}, "bandwidth must be a finite number > 0. Received: bandwidth=0"),
        ({"bandwidth": float("nan")}, "bandwidth must be a finite number > 0. Received: bandwidth=nan"),
        ({"order": "star"}, "order must be one of 'chain', 'tree', 'ring'. Received: order='star'"),
        ({"bytes": 10**400}, "the time must be a finite number of seconds. Received: hosts=2, bytes=1000"),
        ({"hosts": 10**400}, "the time must be a finite number of seconds. Received: hosts=1000"),
        ({"latency": 1e308}, "the time must be .* Received: hosts=2, bytes=8, latency=1e.308, bandwidth=1000000.0"),
        ({"bandwidth": 1e-320}, "the time must be a finite number of seconds"),
    ],
)
def test_what_has_no_cost_is_refused(values: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"hosts": 2, "bytes": 8, "latency": 0.1, "bandwidth": 1e6, **values}
    with pytest.raises(ConfigurationError, match=text):
        exchange_cost(**given)
