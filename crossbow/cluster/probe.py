"""Measurements of ranks and of the network between them, from which groups and a data sharding follow."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from crossbow.cluster.ranks import Ranks
from crossbow.cluster.sums import Add, Waiting, blocks_of, chain, sum_target, tree
from crossbow.cluster.transport import Channel, Pending, Transport
from crossbow.files import make_directory, write_whole
from crossbow.host_memory import aligned_zeros
from crossbow.synch.grouping import groups_by_speed
from crossbow.types import Array, CrossbowError

ROUND_TRIPS = 30
TRANSFERS = 5
TRANSFER_BYTES = 4 << 20
SECONDS_OF_A_TRANSFER = 30.0
"""Maximum wait for another rank."""
SUMS, SECONDS_OF_SUMS = 5, 1.0
"""Number of sums that are measured, and the time after which no further sum is begun."""


@dataclass(frozen=True)
class RankSpeed:
    """The speed of a rank that trains alone."""

    rank: int
    host: str
    examples_per_second: float


@dataclass(frozen=True)
class LinkSpeed:
    """The network between two ranks."""

    ranks: tuple[int, int]
    latency: float
    """Seconds that a message of 8 bytes takes: half of the shortest round trip."""
    bandwidth: float
    """Bytes per second for messages of `TRANSFER_BYTES`, from the shortest round trip."""


def measure_links(ranks: Ranks) -> list[LinkSpeed]:
    """Measure the links between all pairs of ranks, one pair after the other. All ranks must call this; every rank has
    the result."""
    links: list[LinkSpeed] = []
    for pair in itertools.combinations(range(ranks.size), 2):
        found = _measure(ranks.transport, pair) if ranks.rank in pair else (0.0, 0.0)
        latency, bandwidth = ranks.gather(found)[pair[0]]  # the others wait here
        links.append(LinkSpeed(pair, latency, bandwidth))
    return links


def measure_sum(ranks: Ranks, elements: int, dtype: np.dtype[np.generic], *, chained: bool) -> float:
    """Seconds until every rank has the sum of the vectors of all ranks: the median of several sums without the first.
    All ranks must call this; every rank has the result. chained: whether the sum travels along the ranks."""
    found: list[float] = []
    own, partial, whole = (aligned_zeros(elements * dtype.itemsize).view(dtype) for _ in range(3))
    target = sum_target(ranks.transport, partial, whole)
    adds = [(place, _adder(target[place], own[place])) for place in blocks_of(own, ranks.transport.block(own.nbytes))]

    def aborted() -> bool:
        ranks.check_others()
        return False

    wait = Waiting(aborted, ranks=ranks.size)
    while len(found) <= SUMS and sum(found) < SECONDS_OF_SUMS:
        ranks.gather(None)  # all begin together
        began = time.perf_counter()
        if chained:
            chain(ranks.transport, partial, whole, adds, wait)
        else:
            tree(ranks.transport, whole, wait)
        found.append(max(ranks.gather(time.perf_counter() - began)))
    return statistics.median(found[1:] or found)


def _adder(target: Array, own: Array) -> Add:
    def add() -> None:
        np.add(target, own, out=target)

    return add


def _measure(transport: Transport, pair: tuple[int, int]) -> tuple[float, float]:
    """Latency and bandwidth of a link, measured by both of its ranks."""
    shortest = min(_round_trip(transport, pair, np.zeros(1)) for _ in range(ROUND_TRIPS))
    values = np.zeros(TRANSFER_BYTES // 8)
    seconds = min(_round_trip(transport, pair, values) for _ in range(TRANSFERS))
    return shortest / 2, 2 * values.nbytes / seconds


def _round_trip(
    transport: Transport, pair: tuple[int, int], values: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> float:
    """Seconds that the values take to the second rank and back."""
    begins = transport.rank == pair[0]
    other = pair[1] if begins else pair[0]
    began = time.perf_counter()
    for sends in (begins, not begins):
        move = transport.send_array if sends else transport.receive_array
        _finish(move(values, other, Channel.PARTIAL), other)
    return time.perf_counter() - began


def _finish(pending: Pending, rank: int) -> None:
    """Wait without sleeping, because a sleep takes longer than a message."""
    deadline = time.monotonic() + SECONDS_OF_A_TRANSFER
    while not pending.done():
        if time.monotonic() > deadline:
            raise CrossbowError(f"waited {SECONDS_OF_A_TRANSFER:g} s for a message of rank {rank}")
        time.sleep(0)  # lets a rank on the same core work


def groups_of_hosts(speeds: Sequence[RankSpeed]) -> list[tuple[str, ...]]:
    """Groups of hosts of similar speed, the fastest first. A host is as fast as its slowest rank, and is repeated for
    each of its ranks.

    >>> speeds = [RankSpeed(0, "a", 10.0), RankSpeed(1, "b", 30.0), RankSpeed(2, "a", 9.0), RankSpeed(3, "c", 33.0)]
    >>> groups_of_hosts(speeds)
    [('b', 'c'), ('a', 'a')]
    """
    slowest: dict[str, float] = {}
    for each in speeds:
        slowest[each.host] = min(slowest.get(each.host, each.examples_per_second), each.examples_per_second)
    hosts = list(slowest)
    return [
        tuple(each.host for host in group for each in speeds if each.host == hosts[host])
        for group in groups_by_speed(list(slowest.values()))
    ]


def shares_by_speed(speeds: Sequence[RankSpeed]) -> list[tuple[float, float]]:
    """Begin and end of each rank's part of the examples: a rank of group G has the share v_min(G) / Σ_H n_H v_min(H),
    with the speed v_min of a group's slowest rank and its number of ranks n. The last end is exactly 1.

    Parts follow one another in rank order, and adjoin exactly.

    >>> shares_by_speed([RankSpeed(0, "a", 30.0), RankSpeed(1, "b", 11.0), RankSpeed(2, "b", 10.0)])
    [(0.0, 0.6), (0.6, 0.8), (0.8, 1.0)]
    """
    speed_of = {
        host: min(each.examples_per_second for each in speeds if each.host in group)
        for group in groups_of_hosts(speeds)
        for host in group
    }
    own = [speed_of[each.host] for each in speeds]
    total = sum(own)
    ends = [round(end / total, 12) for end in itertools.accumulate(own, initial=0.0)]
    ends[-1] = 1.0
    return list(itertools.pairwise(ends))


def write_probe(directory: Path, speeds: Sequence[RankSpeed], links: Sequence[LinkSpeed]) -> list[Path]:
    """Write `groups`, `data_sharding` and `speeds.json`, and return their paths. Raises DataError."""
    make_directory(directory)
    texts = {
        "groups": "".join(f"{' '.join(group)}\n" for group in groups_of_hosts(speeds)),
        "data_sharding": "".join(f"{begin!r} {end!r}\n" for begin, end in shares_by_speed(speeds)),
        "speeds.json": json.dumps({"ranks": [*map(asdict, speeds)], "links": [*map(asdict, links)]}, indent=1) + "\n",
    }
    for name, text in texts.items():
        write_whole(directory / name, text.encode())
    return [directory / name for name in texts]
