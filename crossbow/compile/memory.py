"""The memory plan: where in one arena each buffer lies, from the steps at which it is first and last used."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from crossbow.compile.occupancy import Occupancy
from crossbow.types import ConfigurationError, bytes_text, physical_memory

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


ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda item: (-item.nbytes, item.first),
    lambda item: (item.first - item.last, -item.nbytes, item.first),
    lambda item: (item.nbytes * (item.first - item.last - 1), item.first),
    lambda item: (item.first, -item.nbytes),
    lambda item: (-item.last, -item.nbytes),
)
"""In which order buffers are placed: the largest first, the longest-lived, the largest in space and time, as they come
up, or as they go. None is the best for every network."""
EFFORT = 100
"""Ranges of bytes that may be passed for each buffer in looking for free places. An order but the first that needs more
is given up, so that networks of thousands of layers are planned in seconds; the zoo's largest needs 40."""


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """The smallest of the plans that the orders make, each buffer at the lowest offset where nothing in use lies."""
    steps = max((item.last for item in lifetimes), default=-1) + 1
    change = [0] * (steps + 1)
    for item in lifetimes:
        change[item.first] += aligned(item.nbytes)
        change[item.last + 1] -= aligned(item.nbytes)
    lower_bound = max(itertools.accumulate(change))
    best: tuple[int, dict[Hashable, int]] | None = None
    for order in ORDERS:
        plan = _place(sorted(lifetimes, key=order), steps, math.inf if best is None else EFFORT * len(lifetimes))
        if plan is not None and (best is None or plan[0] < best[0]):
            best = plan
        if best is not None and best[0] == lower_bound:
            break
    assert best is not None
    return MemoryPlan(
        offsets=best[1],
        arena=best[0],
        without_reuse=sum(aligned(item.nbytes) for item in lifetimes),
        lower_bound=lower_bound,
    )


def check_memory(needs: Mapping[str, int], memory: int | None = None, of: str = "memory") -> None:
    """Refuse what is larger than so many bytes of memory (None: all that the machine has), before any of it is there.

    needs: bytes by what they are for; of: whose memory. Raises ConfigurationError.
    """
    memory, total = physical_memory() if memory is None else memory, sum(needs.values())
    if total > memory:
        parts = ", ".join(f"{bytes_text(nbytes)} for {name}" for name, nbytes in needs.items())
        raise ConfigurationError(
            f"expected a plan that fits into {bytes_text(memory)} of {of}. Received: {bytes_text(total)}, of these "
            f"{parts}; lower batch_size or learners_per_device"
        )


def _place(lifetimes: Sequence[Lifetime], steps: int, effort: float) -> tuple[int, dict[Hashable, int]] | None:
    """Bytes that the buffers take, placed in this order, and their offsets; None where that takes more effort."""
    arena, occupancy = 0, Occupancy(steps)
    offsets: dict[Hashable, int] = {}
    for lifetime in lifetimes:
        size = aligned(lifetime.nbytes)
        offset = offsets[lifetime.name] = occupancy.place(lifetime.first, lifetime.last, size)
        arena = max(arena, offset + size)
        if occupancy.passed > effort:
            return None
    return arena, offsets
