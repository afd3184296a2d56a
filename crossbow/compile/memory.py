"""The memory plan: the offset of each buffer in one arena, from the steps of its first and last use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from crossbow.compile.occupancy import Occupancy
from crossbow.host_memory import physical_memory
from crossbow.types import ConfigurationError, bytes_text

ALIGNMENT = 64
"""Alignment in bytes: a cache line, and the requirement of vector instructions."""


@dataclass(frozen=True)
class Lifetime:
    """A buffer with its size in bytes, in use from step `first` to step `last`, inclusive."""

    name: Hashable
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets in the arena, and measures of the plan's quality."""

    offsets: Mapping[Hashable, int]
    arena: int
    """Size of the arena in bytes."""
    without_reuse: int
    """Size in bytes without sharing of memory."""
    lower_bound: int
    """Bytes in use at the fullest step. No plan needs less."""


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda item: (-item.nbytes, item.first),
    lambda item: (item.first - item.last, -item.nbytes, item.first),
    lambda item: (item.nbytes * (item.first - item.last - 1), item.first),
    lambda item: (item.first, -item.nbytes),
    lambda item: (-item.last, -item.nbytes),
)
"""Orders in which buffers are placed: by size, by lifetime, by size × lifetime, by first use, or by last use. None is
the best for every network."""
NEAR = 1.001
"""Arena size relative to the lower bound at which no further order is tried."""
EFFORT = 100
"""Maximum number of byte ranges to pass for each buffer in the search for free memory. An order that needs more is
abandoned, unless it is the first, so that networks of thousands of layers are planned in seconds; the zoo's largest
network needs 40."""


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """The smallest plan over all orders. Each buffer is placed at the lowest free offset."""
    steps = max((item.last for item in lifetimes), default=-1) + 1
    change = [0] * (steps + 1)
    for item in lifetimes:
        change[item.first] += aligned(item.nbytes)
        change[item.last + 1] -= aligned(item.nbytes)
    lower_bound = max(itertools.accumulate(change))
    best: tuple[int, dict[Hashable, int]] | None = None
    for order in ORDERS:
        limits = (math.inf, math.inf) if best is None else (best[0], EFFORT * len(lifetimes))
        best = _place(sorted(lifetimes, key=order), steps, *limits) or best
        if best is not None and best[0] <= NEAR * lower_bound:
            break
    assert best is not None
    return MemoryPlan(
        offsets=best[1],
        arena=best[0],
        without_reuse=sum(aligned(item.nbytes) for item in lifetimes),
        lower_bound=lower_bound,
    )


def check_memory(needs: Mapping[str, int], memory: int | None = None, of: str = "memory") -> None:
    """Raises ConfigurationError for needs that exceed the memory, before any is allocated.

    needs: bytes by purpose. memory: available bytes; None is the machine's memory. of: owner of the memory, for errors.
    """
    memory, total = physical_memory() if memory is None else memory, sum(needs.values())
    if total > memory:
        parts = ", ".join(f"{bytes_text(nbytes)} for {name}" for name, nbytes in needs.items())
        raise ConfigurationError(
            f"expected a plan that fits into {bytes_text(memory)} of {of}. Received: {bytes_text(total)}, of these "
            f"{parts}; lower batch_size or learners_per_device"
        )


def _place(
    lifetimes: Sequence[Lifetime], steps: int, limit: float, effort: float
) -> tuple[int, dict[Hashable, int]] | None:
    """Arena size and offsets of buffers placed in this order; None if the size reaches the limit or the search exceeds
    the effort."""
    arena, occupancy = 0, Occupancy(steps)
    offsets: dict[Hashable, int] = {}
    for lifetime in lifetimes:
        size = aligned(lifetime.nbytes)
        offset = offsets[lifetime.name] = occupancy.place(lifetime.first, lifetime.last, size)
        arena = max(arena, offset + size)
        if arena >= limit or occupancy.passed > effort:
            return None
    return arena, offsets
