"""Collectives: the sum of one vector per device, on every device, through host memory; and a fake for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from crossbow.types import Array


class Collective(Protocol):
    """A group of devices that add up vectors."""

    def all_reduce(self, vectors: Sequence[Array]) -> None:
        """Every vector ← the sum of all, in device order, so that all are bit-identical. One vector per device."""


@dataclass(frozen=True)
class HostCollective:
    """Sum through shared host memory, for CPU devices."""

    devices: int

    def all_reduce(self, vectors: Sequence[Array]) -> None:
        check_vectors(self.devices, vectors)
        first, *others = vectors
        for other in others:
            np.add(first, other, out=first)
        for other in others:
            other[...] = first


Injection = Callable[[int, Sequence[Array]], Sequence[Array] | None]
"""What a test does before a call's sum: raise, delay, damage. It gets the call's number, from 0, and the vectors, and
may return others, which are added up instead."""


@dataclass
class FakeCollective:
    """Records the calls, and does what a test injects before the real sum: a `Failure`, `Stall` or `WrongSize`, or what
    else it wants."""

    devices: int
    inject: Injection | None = None
    calls: list[tuple[int, ...]] = field(default_factory=list)
    """The sizes of the vectors of each call, also of one that failed."""

    def all_reduce(self, vectors: Sequence[Array]) -> None:
        number = len(self.calls)
        self.calls.append(tuple(vector.size for vector in vectors))
        if self.inject is not None:
            others = self.inject(number, vectors)
            vectors = vectors if others is None else others
        HostCollective(self.devices).all_reduce(vectors)


@dataclass(frozen=True)
class Failure:
    """A call that raises: a device is gone."""

    error: BaseException
    at: int = 0
    """Which call."""

    def __call__(self, number: int, vectors: Sequence[Array]) -> None:
        if number == self.at:
            raise self.error


@dataclass(frozen=True)
class Stall:
    """A call that does not come back before it is told to: a device is late."""

    at: int = 0
    begun: threading.Event = field(default_factory=threading.Event)
    """Set when the call is made."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set by the test when it may go on."""

    def __call__(self, number: int, vectors: Sequence[Array]) -> None:
        if number == self.at:
            self.begun.set()
            self.over.wait()


@dataclass(frozen=True)
class WrongSize:
    """A call in which the vector of a device comes without its last element."""

    at: int = 0
    device: int = -1

    def __call__(self, number: int, vectors: Sequence[Array]) -> Sequence[Array] | None:
        if number != self.at:
            return None
        changed = list(vectors)
        changed[self.device] = changed[self.device][:-1]
        return changed


def check_vectors(devices: int, vectors: Sequence[Array]) -> None:
    """Raise ValueError unless there is one vector per device, all alike."""
    kinds = {(vector.shape, vector.dtype.name) for vector in vectors}
    if len(vectors) != devices or len(kinds) != 1:
        raise ValueError(
            f"all_reduce: expected {devices} vectors of one size and type. Received: {len(vectors)} of {sorted(kinds)}"
        )
