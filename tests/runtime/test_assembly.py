"""The memory that a run plans for is the memory that it allocates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from crossbow import SolverConf
from crossbow.cluster.ranks import Ranks
from crossbow.host_memory import aligned_zeros
from crossbow.ops import BatchNorm
from crossbow.runtime.engine import Engine
from crossbow.synch import EASGD, SMA, SSGD, AsynchronousSGD, DiLoCo, Gossip, Hogwild, ModelAveraging, Rule, TwoLevel
from crossbow.types import Array
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.runtime.test_hosts import SOLVER, SYSTEM, engine_of
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


@pytest.mark.parametrize("order", ["chain", "tree"])
@pytest.mark.parametrize(
    "rule", [SSGD(), SMA(), TwoLevel(SSGD(), DiLoCo(tau=2)), TwoLevel(SMA(), ModelAveraging(tau=2))], ids=str
)
def test_vectors_of_ranks_that_average(rule: Any, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a chain each rank has an unfinished sum, of weights and of statistics."""
    sums: list[int] = []

    def counted(nbytes: int) -> Any:
        sums.append(nbytes)
        return aligned_zeros(nbytes)

    def check(ranks: Ranks) -> None:
        engine = engine_of(ranks, rule, SOLVER, system, BatchNorm())
        try:
            assert isinstance(engine, Engine)
            outer, program = engine.parts.outer, engine.parts.program
            others = [] if outer is None else [outer.weights, outer.previous, *outer.base.vectors(0).values()]
            others += [] if outer is None else [*outer.base.statistics, outer.base.statistics_mean]
            if order == "chain":
                others += [layout.new_vector() for layout in (program.model, program.statistics)]
            check_vectors(engine, others)
        finally:
            engine.close()

    monkeypatch.setattr("crossbow.runtime.mean.aligned_zeros", counted)
    system = replace(SYSTEM, learners_per_device=2, sum_order=order)
    works: list[Callable[[], None]] = [partial(check, ranks) for ranks in FakeNetwork(2).ranks()]
    at_once(works)
    assert len(sums) == (4 if order == "chain" else 0)
