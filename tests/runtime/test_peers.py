"""Gossip between the learners of several ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import Dataset, ModelConf, SolverConf, SystemConf
from crossbow.cluster.ranks import Ranks
from crossbow.runtime.changing_engine import new_engine
from crossbow.runtime.cpu.exchange import CpuMeeting
from crossbow.runtime.limits import Limits
from crossbow.runtime.messages import Kind, Note
from crossbow.runtime.peers import RankPeerExchange
from crossbow.runtime.run import TrainingRun
from crossbow.solver import Pace
from crossbow.synch import Gossip, simulate
from crossbow.synch.progress import Masses
from crossbow.types import TrainingUnit
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.runtime.test_across_ranks import MODEL, losses, train_on
from tests.runtime.test_free import FEATURES, SEED, START, linear, rows, targets
from tests.runtime.test_served import CALM, example
from tests.support import SECONDS, same_weights, until

SOLVER = SolverConf(learning_rate=0.05, momentum=0.5, weight_decay=0.1)


class Turns:
    """Lets learners exchange in one order only, each when what was sent before has arrived."""

    def __init__(self, events: Sequence[int]) -> None:
        self.events, self.place = list(events), 0
        self.changed = threading.Condition()
        self.exchanges: list[RankPeerExchange] = []

    def join(self, exchange: RankPeerExchange, first: int) -> None:
        original = exchange._exchange

        def in_turn(learner: int, pace: Any) -> None:
            with self.changed:
                assert self.changed.wait_for(lambda: self.events[self.place] == first + learner, SECONDS)
                original(learner, pace)
                until(lambda: self.total == pytest.approx(1))
                self.place += 1
                self.changed.notify_all()

        exchange._exchange = in_turn  # type: ignore[method-assign]
        self.exchanges.append(exchange)

    @property
    def total(self) -> float:
        """The masses that are not on their way."""
        return sum(exchange.masses.total for exchange in self.exchanges)


EXACT = SystemConf(precision="float64", seed=SEED, kernels="reference")


def trained(
    rule: Gossip, learners: list[int], events: Sequence[int], turns: Turns | None, given: SystemConf = EXACT
) -> list[Any]:
    """z, masses and exchanges of each rank."""
    joined = threading.Barrier(len(learners))

    def on(ranks: Ranks, own: int, first: int) -> Callable[[], Any]:
        def run() -> Any:
            flow, model = linear(), ModelConf(rule=rule, batch_size=1)
            system = replace(given, learners_per_device=own)
            engine: Any = new_engine(
                flow.graph, flow.graph, Dataset((rows, targets)), model, SOLVER, system, ranks=ranks
            )
            exchange = engine.coordination.exchange
            if turns is not None:
                turns.join(exchange, first)
            joined.wait(SECONDS)
            try:
                limits = Limits(count=len(events) * rule.tau, unit=TrainingUnit.TASKS)
                TrainingRun(engine, model, limits, (), test=False, ranks=ranks).run()
                z = np.concatenate([value.ravel() for value in engine.weights.values()])
                return z, exchange.masses.total, engine.merges
            finally:
                engine.close()

        return run

    firsts = [sum(learners[:rank]) for rank in range(len(learners))]
    return at_once([on(*each) for each in zip(FakeNetwork(len(learners)).ranks(), learners, firsts, strict=True)])


@pytest.mark.parametrize("learners", [[1, 1], [1, 2]], ids=str)
@pytest.mark.parametrize("rule", [Gossip(probability=0.5), Gossip(probability=1, tau=2), Gossip()], ids=str)
def test_as_in_the_simulator_in_turn(rule: Gossip, learners: list[int]) -> None:
    check_in_turn(rule, learners)


def check_in_turn(rule: Gossip, learners: list[int], system: SystemConf = EXACT) -> None:
    number, done = sum(learners), [0] * sum(learners)
    rounds = 8

    def gradient(weights: Any, learner: int, task: int) -> Any:
        x, y = example(learner, done[learner], number)
        done[learner] += 1
        return (weights @ x - y) * x

    made = simulate(
        rule,
        initial=[START] * FEATURES,
        gradient=gradient,
        learners=number,
        events=list(range(number)) * rounds * rule.tau,
        tasks=number * rounds * rule.tau,
        solver=SOLVER,
        seed=SEED,
    )
    events = list(range(number)) * rounds
    found = trained(rule, learners, events, Turns([*events, -1]), system)
    for z, _, merges in found:
        np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)
        assert merges == len(events)


def test_the_masses_of_all_ranks_add_up_to_1() -> None:
    events = [0, 1, 2] * 40
    found = trained(Gossip(probability=0.7), [2, 1], events, None)
    assert sum(mass for _, mass, _ in found) == pytest.approx(1, abs=1e-12)
    assert [merges for _, _, merges in found] == [len(events)] * 2
    assert found[0][0].tobytes() == found[1][0].tobytes()


def test_all_ranks_have_the_same_model_and_count_alike() -> None:
    model = replace(MODEL, rule=Gossip(probability=0.3))
    first, second = train_on([1, 2], model, solver=CALM, limits=Limits(count=4))
    assert same_weights(first.weights, second.weights)
    assert losses(first) == losses(second)
    assert first.history.records[-1].loss < first.history.records[0].loss


@pytest.mark.parametrize(
    ("peer", "rank"),
    [(0, None), (2, None), (-1, 0), (-2, 0), (3, 2), (5, 3)],
)
def test_weights_go_to_the_rank_of_the_peer(peer: int, rank: int | None) -> None:
    """From learner 1 of rank 1, whose three learners come after two. A peer of this rank needs no message."""
    run: list[Any] = []
    messages: list[Any] = []
    weights = np.arange(3.0)
    exchange: Any = object.__new__(RankPeerExchange)
    exchange._first, exchange._own, exchange._firsts = 2, 3, [0, 2, 5, 7]
    exchange._rule, exchange.masses = Gossip(), Masses(8, 3)
    exchange._send = {(1, each): SimpleNamespace(run=lambda *_, each=each: run.append(each)) for each in (0, 2)}
    replica = SimpleNamespace(vectors=lambda: {"weights": weights})
    exchange._participants = SimpleNamespace(replicas=[replica] * 3, meeting=CpuMeeting())
    exchange._messages = SimpleNamespace(send=lambda *message: messages.append(message))
    exchange._give(1, peer, Pace(0.5, 0.25, 3, 1.5))
    mass = exchange.masses.own[0] / 2
    assert exchange.masses.own[1] == mass
    if rank is None:
        assert (run, messages) == ([peer], [])
        return
    ((to, note, vector),) = messages
    assert run == []
    assert (to, note) == (rank, Note(Kind.VECTOR, peer + 2, (mass, 0.5, 0.25, 3, 1.5)))
    assert vector.array.tolist() == weights.tolist()
    assert vector.array is not weights
