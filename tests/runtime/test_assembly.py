"""The memory that a run plans for is the memory that it allocates."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from crossbow import SolverConf
from crossbow.ops import BatchNorm
from crossbow.synch import EASGD, SMA, SSGD, Gossip, Hogwild, Rule
from crossbow.types import Array
from tests.support import context, perceptron


def allocated(vectors: Iterable[Array | None]) -> int:
    """Bytes of the arrays, each counted once."""
    return sum({id(vector): vector.nbytes for vector in vectors if vector is not None}.values())


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("rule", [SMA(), SSGD(), EASGD(), Gossip(), Hogwild()], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("solver", [SolverConf(), SolverConf(momentum=0.9), SolverConf(method="adam")], ids=str)
def test_vectors(rule: Rule, solver: SolverConf, devices: str) -> None:
    with context(perceptron(BatchNorm()), rule=rule, solver=solver, devices=devices) as running:
        parts = running.engine.parts
        vectors: list[Array | None] = []
        for base in parts.bases:
            vectors += [*base.vectors(0).values(), *base.statistics, base.statistics_mean]
        for replica in parts.replicas:
            vectors += [*replica.vectors().values(), *replica.statistics]
        assert parts.needs.all_vectors()["weights and gradients"] == allocated(vectors)
