"""Collectives: the sum of one vector per device, on every device, through host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


def check_vectors(devices: int, vectors: Sequence[Array]) -> None:
    """Raise ValueError unless there is one vector per device, all alike."""
    kinds = {(vector.shape, vector.dtype.name) for vector in vectors}
    if len(vectors) != devices or len(kinds) != 1:
        raise ValueError(
            f"all_reduce: expected {devices} vectors of one size and type. Received: {len(vectors)} of {sorted(kinds)}"
        )
