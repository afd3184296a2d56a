"""The mean of all learners' vectors; tests/runtime/test_across_ranks.py has whole runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SMA
from crossbow.cluster.members import Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.kernels import select_library
from crossbow.runtime.arithmetic import VectorArithmetic
from crossbow.runtime.flags import Flags
from crossbow.runtime.mean import Mean
from crossbow.runtime.merging import Merging
from crossbow.synch import HostCollective
from crossbow.testing import FakeCollective
from tests.cluster.fake_network import FakeNetwork, at_once

DTYPE = np.dtype(np.float32)
ELEMENTS = 1029


def new_mean(ranks: Ranks, learners: int, devices: int = 1, collective: Any = None, *, chained: bool = True) -> Mean:
    library, _ = select_library("reference", DTYPE)
    merging = Merging(VectorArithmetic(library, DTYPE), SMA(), learners, adds_parts=True, chained=chained)
    return Mean(merging, ranks, collective or HostCollective(devices), Flags(learners, 1))


def vectors(count: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {f"sent{i}": generator.standard_normal(ELEMENTS).astype(DTYPE) * 10**i for i in range(count)}


ALONE = Ranks(View(0, (Rank(0, "here"),)))


def alone(count: int) -> Any:
    """The mean on one device."""
    mean = np.zeros(ELEMENTS, DTYPE)
    for step in new_mean(ALONE, count, 2).of("sent", vectors(count), [mean, mean.copy()]):
        step.call()
    return mean


@pytest.mark.parametrize("split", [1, 2, 3])
def test_ranks_add_in_the_order_of_learners(split: int) -> None:
    every = vectors(4)
    parts = [list(every.values())[:split], list(every.values())[split:]]
    means = [np.zeros(ELEMENTS, DTYPE) for _ in parts]
    works = []
    for ranks, part, mean in zip(FakeNetwork(2).ranks(), parts, means, strict=True):
        own = {f"sent{i}": vector for i, vector in enumerate(part)}
        (step,) = new_mean(ranks, 4).of("sent", own, [mean])
        works.append(step.call)
    at_once(works)
    assert means[0].tobytes() == means[1].tobytes() == alone(4).tobytes()


def test_devices_have_copies_of_the_mean() -> None:
    means = [np.zeros(ELEMENTS, DTYPE) for _ in range(3)]
    for step in new_mean(ALONE, 3, 3).of("sent", vectors(3), means):
        step.call()
    np.testing.assert_allclose(means[0], np.mean(list(vectors(3).values()), axis=0), rtol=1e-4, atol=1e-4)
    assert means[0].tobytes() == means[1].tobytes() == means[2].tobytes()


def test_in_a_tree_devices_add_up_first() -> None:
    collective = FakeCollective(2)
    means = [np.full(4, 1, DTYPE), np.full(4, 2, DTYPE)]
    mean = new_mean(ALONE, 2, 2, collective, chained=False)
    assert mean.awaited == ("contributed", mean.flags.contributed)
    for step in mean.of("sent", {}, means):
        step.call()
    assert len(collective.calls) == 1
    assert [each.tolist() for each in means] == [[3.0] * 4] * 2
    assert new_mean(ALONE, 2, 2).awaited[0] == "ready"
