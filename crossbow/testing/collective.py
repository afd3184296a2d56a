"""A collective that records its calls and injects faults of devices: failures, delays, and vectors of another size."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from crossbow.synch import HostCollective
from crossbow.types import Array

Injection = Callable[[int, Sequence[Array]], Sequence[Array] | None]
"""Function that is called before the sum of a call, with the number of the call, from 0, and the vectors. It may raise,
wait, change the vectors, or return other vectors to sum instead."""


@dataclass
class FakeCollective:
    """A collective through host memory that records its calls. Before each sum it calls the function that a test
    injects: a `Failure`, a `Stall`, a `WrongSize`, or any other `Injection`.

    >>> import numpy as np
    >>> collective = FakeCollective(2, inject=Failure(ConnectionError("device 1 is gone"), at=1))
    >>> vectors = [np.ones(3), np.ones(3)]
    >>> collective.all_reduce(vectors)
    >>> collective.all_reduce(vectors)
    Traceback (most recent call last):
    ConnectionError: device 1 is gone
    >>> collective.calls
    [(3, 3), (3, 3)]
    """

    devices: int
    inject: Injection | None = None
    calls: list[tuple[int, ...]] = field(default_factory=list)
    """Sizes of the vectors of each call, including failed calls."""

    def all_reduce(self, vectors: Sequence[Array]) -> None:
        number = len(self.calls)
        self.calls.append(tuple(vector.size for vector in vectors))
        if self.inject is not None:
            others = self.inject(number, vectors)
            vectors = vectors if others is None else others
        HostCollective(self.devices).all_reduce(vectors)


@dataclass(frozen=True)
class Failure:
    """Raises an exception in one call, as if a device were gone."""

    error: BaseException
    at: int = 0
    """Number of the call."""

    def __call__(self, number: int, vectors: Sequence[Array]) -> None:
        if number == self.at:
            raise self.error


@dataclass(frozen=True)
class Stall:
    """Blocks one call until it is released, as if a device were late."""

    at: int = 0
    begun: threading.Event = field(default_factory=threading.Event)
    """Set when the call has begun."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set by the test to release the call."""

    def __call__(self, number: int, vectors: Sequence[Array]) -> None:
        if number == self.at:
            self.begun.set()
            self.over.wait()


@dataclass(frozen=True)
class WrongSize:
    """Removes the last element of a device's vector in one call."""

    at: int = 0
    device: int = -1

    def __call__(self, number: int, vectors: Sequence[Array]) -> Sequence[Array] | None:
        if number != self.at:
            return None
        changed = list(vectors)
        changed[self.device] = changed[self.device][:-1]
        return changed
