"""The memory that a run plans for is the memory that it allocates."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from crossbow import SolverConf
from crossbow.ops import BatchNorm
from crossbow.runtime.engine import Engine
from crossbow.synch import EASGD, SMA, SSGD, AsynchronousSGD, Gossip, Hogwild, Rule
from crossbow.types import Array
from tests.runtime.test_served import on_ranks
from tests.support import context, perceptron


def allocated(vectors: Iterable[Array | None]) -> int:
    """Bytes of the arrays, each counted once."""
    return sum({id(vector): vector.nbytes for vector in vectors if vector is not None}.values())


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("rule", [SMA(), SSGD(), EASGD(), Gossip(), Hogwild()], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("solver", [SolverConf(), SolverConf(momentum=0.9), SolverConf(method="adam")], ids=str)
def test_vectors(rule: Rule, solver: SolverConf, devices: str) -> None:
    with context(perceptron(BatchNorm()), rule=rule, solver=solver, devices=devices) as running:
        check_vectors(running.engine)


def check_vectors(engine: Engine, others: Iterable[Array] = ()) -> None:
    """others: vectors that are not in the assembly."""
    parts, vectors = engine.parts, list[Array | None](others)
    for base in parts.bases:
        vectors += [*base.vectors(0).values(), *base.statistics, base.statistics_mean]
    for replica in (*parts.replicas, *parts.mirrors):
        vectors += [*replica.vectors().values(), *replica.statistics]
    assert parts.needs.all_vectors()["weights and gradients"] == allocated(vectors)


@pytest.mark.parametrize(
    ("rule", "servers"), [(AsynchronousSGD(), 1), (EASGD(), 2), (Hogwild(), 1), (Hogwild(), 2), (Gossip(), 1)], ids=str
)
def test_vectors_of_several_ranks(rule: Rule, servers: int) -> None:
    def look(engine: Engine) -> int:
        exchange = engine.coordination.exchange  # type: ignore[attr-defined]
        check_vectors(engine, [exchange._arrived] if isinstance(rule, Gossip) else [])
        return len(engine.parts.mirrors)

    mirrors = [0, 0] if isinstance(rule, Gossip) else [2, servers - 1]
    assert on_ranks([1, 2], rule, 3, look, servers) == mirrors
