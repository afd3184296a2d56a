"""Ranks as threads of one process, connected by queues."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from crossbow.cluster.members import Changes, Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.transport import Channel, Pending

T = TypeVar("T")


class FakePending:
    """Done when a condition holds."""

    def __init__(self, done: Callable[[], bool]) -> None:
        self._done = done

    def done(self) -> bool:
        return self._done()


class FakeNetwork:
    """Implements a `Transport` for each of its ranks."""

    def __init__(self, size: int, *, one_host: bool = False) -> None:
        hosts = ["host" if one_host else f"host{number}" for number in range(size)]
        self.view = View(0, tuple(Rank(number, host) for number, host in enumerate(hosts)))
        self.lock = threading.RLock()
        self.messages: dict[tuple[int, int, Channel], deque[tuple[int, bytes]]] = defaultdict(deque)
        self.arrays: dict[tuple[int, int, int, Channel], deque[Any]] = defaultdict(deque)
        self.sums: dict[int, list[list[Any]]] = defaultdict(lambda: [[] for _ in range(size)])
        self.aborted: list[tuple[int, int]] = []

    def transports(self) -> list[FakeTransport]:
        return [FakeTransport(self, rank.number) for rank in self.view.ranks]

    def ranks(self) -> list[Ranks]:
        return [Ranks(self.view, transport.rank, transport) for transport in self.transports()]


class FakeTransport:
    """Implements `Transport`."""

    elastic = False

    def __init__(self, network: FakeNetwork, rank: int) -> None:
        self.network, self.rank, self.view = network, rank, network.view
        self.era = 0

    def block(self, nbytes: int) -> int:
        return nbytes // 2

    def changed(self) -> bool:
        return False

    def regroup(self) -> Changes:
        return Changes()

    def forget(self) -> None:
        self.era += 1

    def send(self, message: bytes, rank: int, channel: int) -> None:
        with self.network.lock:
            self.network.messages[self.era, rank, channel].append((self.rank, message))

    def receive(self, channel: int, rank: int | None = None) -> tuple[int, bytes] | None:
        with self.network.lock:
            waiting = self.network.messages[self.era, self.rank, channel]
            for message in waiting:
                if rank is None or message[0] == rank:
                    waiting.remove(message)
                    return message
            return None

    def send_array(self, array: Any, rank: int, channel: int) -> Pending:
        with self.network.lock:
            self.network.arrays[self.era, self.rank, rank, channel].append(array.copy())
        return FakePending(lambda: True)

    def receive_array(self, array: Any, rank: int, channel: int) -> Pending:
        order = self.network.arrays[self.era, rank, self.rank, channel]
        received: list[bool] = []

        def done() -> bool:
            with self.network.lock:
                if not received and order:
                    array[...] = order.popleft()
                    received.append(True)
                return bool(received)

        return FakePending(done)

    def sum_array(self, array: Any) -> Pending:
        sums = self.network.sums[self.era]
        with self.network.lock:
            number = len(sums[self.rank])
            sums[self.rank].append(array.copy())
        received: list[bool] = []

        def done() -> bool:
            with self.network.lock:
                if not received and all(len(of_rank) > number for of_rank in sums):
                    array[...] = np.sum([of_rank[number] for of_rank in sums], axis=0, dtype=array.dtype)
                    received.append(True)
                return bool(received)

        return FakePending(done)

    def abort(self, status: int) -> None:
        self.network.aborted.append((self.rank, status))


SECONDS_OF_A_HANG = 240.0
"""Where no pass is compiled yet, the first training compiles them all, on a machine that may be busy."""


def at_once(works: list[Callable[[], T]]) -> list[T]:
    """The results of all functions, each called on a thread of its own. Raises the first exception."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SECONDS_OF_A_HANG
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    assert len(results) == len(works), "a rank did not end"
    return [results[number] for number in range(len(works))]
