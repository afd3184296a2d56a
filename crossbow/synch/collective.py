"""Collectives: the sum of one vector per device, on every device. Through host memory; and a fake for tests."""

from __future__ import annotations

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
    """The sum through shared host memory: for CPU devices."""

    devices: int

    def all_reduce(self, vectors: Sequence[Array]) -> None:
        check_vectors(self.devices, vectors)
        first, *others = vectors
        for other in others:
            np.add(first, other, out=first)
        for other in others:
            other[...] = first


@dataclass
class FakeCollective:
    """Records the calls, and does what a test injects before the real sum: raise, delay, damage."""

    devices: int
    inject: Callable[[int, Sequence[Array]], None] | None = None
    """Called with the call's number, from 0, and the vectors."""
    calls: list[tuple[int, ...]] = field(default_factory=list)
    """The sizes of the vectors of each call."""

    def all_reduce(self, vectors: Sequence[Array]) -> None:
        if self.inject is not None:
            self.inject(len(self.calls), vectors)
        self.calls.append(tuple(vector.size for vector in vectors))
        HostCollective(self.devices).all_reduce(vectors)


def check_vectors(devices: int, vectors: Sequence[Array]) -> None:
    """Raise ValueError unless there is one vector per device, all alike."""
    kinds = {(vector.shape, vector.dtype.name) for vector in vectors}
    if len(vectors) != devices or len(kinds) != 1:
        raise ValueError(
            f"all_reduce: expected {devices} vectors of one size and type. Received: {len(vectors)} of {sorted(kinds)}"
        )
