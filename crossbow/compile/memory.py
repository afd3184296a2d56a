"""The memory plan: where in one arena each buffer lies, from the steps at which it is first and last used."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes. A cache line, and what vector instructions want."""


@dataclass(frozen=True)
class Lifetime:
    """A buffer of so many bytes, in use from step `first` to step `last`, both included."""

    name: Hashable
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets in the arena, and what the plan is worth."""

    offsets: Mapping[Hashable, int]
    arena: int
    """Bytes of the arena."""
    without_reuse: int
    """Bytes if no two buffers shared memory."""
    lower_bound: int
    """Bytes in use at the fullest step: no plan needs less."""


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Place the largest buffers first, each at the lowest offset where nothing in use at the same time lies."""
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[Hashable, int] = {}
    for lifetime in sorted(lifetimes, key=lambda item: (-item.nbytes, item.first)):
        size = aligned(lifetime.nbytes)
        offset = 0
        for start, end, other in placed:  # sorted by start
            if other.last < lifetime.first or lifetime.last < other.first:
                continue
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[lifetime.name] = offset
        placed.append((offset, offset + size, lifetime))
        placed.sort(key=lambda item: item[0])
    steps = range(max((item.last for item in lifetimes), default=-1) + 1)
    return MemoryPlan(
        offsets=offsets,
        arena=max((end for _, end, _ in placed), default=0),
        without_reuse=sum(aligned(item.nbytes) for item in lifetimes),
        lower_bound=max(
            (sum(aligned(item.nbytes) for item in lifetimes if item.first <= step <= item.last) for step in steps),
            default=0,
        ),
    )
