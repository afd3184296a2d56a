"""Sums over ranks.

In a *chain*, the unfinished sum travels along the ranks, and each adds its own terms, so that the terms of all ranks
are added from left to right, as one process would add them. The vector is divided into blocks, which travel one after
another: while a rank adds its terms to one block, the next rank adds to the block before. The last rank has the sum,
which travels on to rank 0 and along the ranks up to the last but one::

    rank 0 ── partial ──► rank 1 ── partial ──► rank 2
       ▲ │                ▲                       │
       │ └──── whole ─────┘                       │
       └───────────────── whole ──────────────────┘

In a *tree*, the transport adds the ranks' sums in its own order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from crossbow.cluster.transport import Channel, Pending, Transport
from crossbow.types import Aborted, Array, CrossbowError

SHORTEST_SLEEP, LONGEST_SLEEP = 50e-6, 10e-3
"""Seconds between two checks of a transfer."""
GROWTH = 1.1
"""Growth of the sleep from one check to the next. The end of a transfer is noticed late by at most a tenth of its
duration."""
LONGEST_IN_A_SUM = 1e-3
"""Lower limit of the longest sleep, which is shorter if more ranks wait one after another, each for the previous
one."""
CACHE_LINE = 64
"""Size in bytes."""
SECONDS_TO_WAIT = 600.0
"""Maximum duration of one wait in training."""

Add = Callable[[], None]
"""Function that adds this rank's terms to a block, or begins it with them on rank 0."""


def blocks_of(vector: Array, nbytes: int) -> list[slice]:
    """The blocks of a vector, of this many bytes each, rounded up to whole cache lines."""
    block = -(-nbytes // CACHE_LINE) * CACHE_LINE // vector.itemsize
    return [slice(start, min(start + block, vector.size)) for start in range(0, vector.size, block)]


class Waiting:
    """Waits for transfers without keeping a core busy."""

    def __init__(
        self,
        aborted: Callable[[], bool] = lambda: False,
        seconds: float = SECONDS_TO_WAIT,
        ranks: int = 2,
        growth: float = GROWTH,
    ) -> None:
        """aborted: returns whether to give up. seconds: maximum duration of a wait. ranks: number of ranks that wait
        one after another, so that their delays add up. growth: growth of the sleep between two checks."""
        self._aborted, self._seconds, self._growth = aborted, seconds, growth
        self._longest = max(LONGEST_IN_A_SUM, LONGEST_SLEEP / max(1, ranks - 1))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return when the condition holds. Raises Aborted, and CrossbowError after the time limit. what: description of
        the condition, for this error."""
        sleep, deadline = SHORTEST_SLEEP, None
        while not condition():
            if self._aborted():
                raise Aborted
            now = time.monotonic()
            deadline = deadline or now + self._seconds
            if now >= deadline:
                raise CrossbowError(f"waited {self._seconds:g} s for {what}")
            time.sleep(sleep)
            sleep = min(self._longest, sleep * self._growth)


def chain(transport: Transport, partial: Array, whole: Array, adds: Sequence[tuple[slice, Add]], wait: Waiting) -> None:
    """whole ← the sum of all ranks' terms, in rank order.

    partial, whole (n,): the unfinished sum and the result. adds: for each block, its place, and the function that adds
    this rank's terms to it, in `whole` on the last rank and in `partial` on the others; see `sum_target`.
    """
    rank, ranks = transport.rank, transport.view.ranks
    last = len(ranks) - 1
    before, after = ranks[rank - 1], ranks[(rank + 1) % len(ranks)]
    places = [place for place, _ in adds]
    target = sum_target(transport, partial, whole)
    coming = (
        [transport.receive_array(target[place], before.number, Channel.PARTIAL) for place in places] if rank else []
    )
    arriving = (
        []
        if rank == last
        else [transport.receive_array(whole[place], before.number, Channel.WHOLE) for place in places]
    )
    going: list[Pending] = []
    for number, (place, add) in enumerate(adds):
        if rank:
            wait.until(coming[number].done, f"the sum of {before}")
        add()
        channel = Channel.WHOLE if rank == last else Channel.PARTIAL
        going.append(transport.send_array(target[place], after.number, channel))
    for number, pending in enumerate(arriving):
        wait.until(pending.done, f"the whole sum from {before}")
        if after.number != last:
            going.append(transport.send_array(whole[places[number]], after.number, Channel.WHOLE))
    for pending in going:
        wait.until(pending.done, f"{after} to receive a sum")


def sum_target(transport: Transport, partial: Array, whole: Array) -> Array:
    """The vector in which this rank adds its terms to the sum."""
    return whole if transport.rank == len(transport.view) - 1 else partial


def tree(transport: Transport, vector: Array, wait: Waiting) -> None:
    """vector ← the sum of all ranks' vectors."""
    wait.until(transport.sum_array(vector).done, "the sum of all ranks")
