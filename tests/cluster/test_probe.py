"""Measurements of ranks, and the files that follow from them."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.cluster import probe
from crossbow.cluster.host_files import read_data_sharding, read_groups
from crossbow.cluster.members import ViewChangedError
from crossbow.cluster.probe import (
    LinkSpeed,
    RankSpeed,
    groups_of_hosts,
    measure_links,
    measure_sum,
    shares_by_speed,
    write_probe,
)
from tests.cluster.fake_network import FakeNetwork, at_once

FLOAT32 = np.dtype(np.float32)
SPEEDS = [
    RankSpeed(0, "slow", 11.0),
    RankSpeed(1, "fast", 90.0),
    RankSpeed(2, "slow", 10.0),
    RankSpeed(3, "even", 10.5),
]


def test_all_ranks_have_the_links_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TRANSFER_BYTES", 8000)
    ranks = FakeNetwork(3).ranks()
    first, *others = at_once([functools.partial(measure_links, each) for each in ranks])
    assert all(each == first for each in others)
    assert [link.ranks for link in first] == [(0, 1), (0, 2), (1, 2)]
    assert all(link.latency > 0 and link.bandwidth > 0 for link in first)


@pytest.mark.parametrize(("ranks", "chained", "most"), [(2, True, 5), (3, False, 5), (3, True, 1)])
def test_all_ranks_have_the_duration_of_a_sum(
    ranks: int, chained: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "SUMS", most)
    counted = dict.fromkeys(("chain", "tree"), 0)

    def counting(name: str) -> Callable[..., None]:
        adds = getattr(probe, name)

        def add(*given: Any) -> None:
            counted[name] += 1
            adds(*given)

        return add

    for name in counted:
        monkeypatch.setattr(probe, name, counting(name))
    measures = [
        functools.partial(measure_sum, each, 1000, FLOAT32, chained=chained) for each in FakeNetwork(ranks).ranks()
    ]
    first, *others = at_once(measures)
    assert first > 0
    assert all(each == first for each in others)
    assert counted == {"chain": chained * ranks * (most + 1), "tree": (not chained) * ranks * (most + 1)}


def test_the_first_sum_counts_only_if_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake clock: the sums take 3, 1, 2, 5, 1, 1 seconds."""
    (alone,) = FakeNetwork(1).ranks()
    for limit, expected in ((100.0, 1.0), (3.0, 3.0)):
        ends = itertools.accumulate([0, 3, 0, 1, 0, 2, 0, 5, 0, 1, 0, 1])
        monkeypatch.setattr(probe, "SECONDS_OF_SUMS", limit)
        monkeypatch.setattr(probe.time, "perf_counter", functools.partial(next, ends))
        assert measure_sum(alone, 10, FLOAT32, chained=False) == expected


def test_a_rank_that_is_lost_ends_the_measurement() -> None:
    first, _ = FakeNetwork(2).ranks()
    first.gather = lambda value: [value]  # type: ignore[method-assign]

    def lost() -> None:
        raise ViewChangedError("rank 1 has left")

    first.check_others = lost  # type: ignore[method-assign]
    with pytest.raises(ViewChangedError, match="rank 1 has left"):
        measure_sum(first, 10, FLOAT32, chained=True)


def test_one_rank_has_no_links() -> None:
    assert measure_links(FakeNetwork(1).ranks()[0]) == []


def test_latency_and_bandwidth_follow_from_the_shortest_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake clock: messages of 8 bytes take 2, 3, … s there and back, those of 4 MiB take 10, 11, … s."""
    seconds = iter([*range(2, 2 + probe.ROUND_TRIPS), *range(10, 10 + probe.TRANSFERS)])
    monkeypatch.setattr(probe, "_round_trip", lambda *arguments: float(next(seconds)))
    (ranks, _) = FakeNetwork(2).ranks()
    assert probe._measure(ranks.transport, (0, 1)) == (1.0, 2 * probe.TRANSFER_BYTES / 10)


def test_hosts_of_similar_speed_are_a_group() -> None:
    assert groups_of_hosts(SPEEDS) == [("fast",), ("slow", "slow", "even")]


def test_shares_follow_the_slowest_of_each_group() -> None:
    """v_min is 90 and 10, n is 1 and 3, so the sum is 120."""
    shares = shares_by_speed(SPEEDS)
    assert [end - begin for begin, end in shares] == pytest.approx([1 / 12, 9 / 12, 1 / 12, 1 / 12], abs=1e-11)
    assert shares[-1][1] == 1
    assert all(before[1] == after[0] for before, after in itertools.pairwise(shares))


@pytest.mark.parametrize("ranks", [1, 3, 7, 49])
def test_the_last_end_is_exactly_one(ranks: int) -> None:
    shares = shares_by_speed([RankSpeed(rank, f"node{rank}", 0.1 * (rank + 1)) for rank in range(ranks)])
    assert Fraction(shares[0][0]) == 0
    assert Fraction(shares[-1][1]) == 1
    assert len(shares) == ranks


def test_the_files_can_be_read_again(tmp_path: Path) -> None:
    links = [LinkSpeed((0, 1), 1e-5, 1e9)]
    paths = write_probe(tmp_path / "probe", SPEEDS, links)
    assert [path.name for path in paths] == ["groups", "data_sharding", "speeds.json"]
    assert read_groups(paths[0]) == groups_of_hosts(SPEEDS)
    assert read_data_sharding(paths[1]) == shares_by_speed(SPEEDS)
    described = json.loads(paths[2].read_text("utf-8"))
    assert described["ranks"][1] == {"rank": 1, "host": "fast", "examples_per_second": 90.0}
    assert described["links"] == [{"ranks": [0, 1], "latency": 1e-5, "bandwidth": 1e9}]
