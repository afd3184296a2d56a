"""Rules without a barrier on ranks with GPUs that are none: as the simulator; and who has to wait for whom."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import ConfigurationError, SolverConf, SystemConf
from crossbow.cluster.ranks import Ranks
from crossbow.kernels.cuda.launch import on
from crossbow.kernels.cuda.transfer import to_device
from crossbow.runtime.building import new_backend
from crossbow.runtime.copies import Copies, Copy
from crossbow.runtime.cuda import backend
from crossbow.runtime.cuda.exchange import CudaMeeting
from crossbow.runtime.cuda.stream import Event
from crossbow.runtime.exchange import Exchange, PeerExchange
from crossbow.runtime.limits import Limits
from crossbow.runtime.memory import on_host
from crossbow.runtime.run import TrainingRun
from crossbow.runtime.served import ServedExchange
from crossbow.runtime.server import Server
from crossbow.solver import Pace
from crossbow.synch import (
    EASGD,
    SMA,
    SSP,
    AsynchronousSGD,
    Default,
    FreeRule,
    Gossip,
    Grouping,
    Hogwild,
    PartiallySynchronous,
    Rule,
    RuleSequence,
    WeedOut,
)
from crossbow.types import CrossbowError, NonFiniteLossError
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.combinations import one_in
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.cuda.fake_memory import FakeError, RaceError
from tests.kernels.cuda.test_fake import pairs
from tests.runtime import test_regrouping as regrouping
from tests.runtime.cuda.test_ranks import GPU, causes, engine_on
from tests.runtime.test_across_ranks import MODEL, Trained, losses, train
from tests.runtime.test_free import SEED
from tests.runtime.test_peers import check_in_turn
from tests.runtime.test_served import CALM, SOLVER, same_bits, simulated, trained
from tests.support import same_weights, until

pytestmark = [pytest.mark.slow]  # on the emulator; what they share with CPUs is tested there

EXACT = SystemConf(devices="cuda:0", learners_per_device=1, precision="float64", seed=SEED)
RULES = [Default(tau=2), AsynchronousSGD(), AsynchronousSGD(weight=0.5, sends="gradient"), EASGD(tau=3), Grouping(1)]


@one_in(2)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rule", [*RULES, SSP(bound=1), WeedOut(window=3)], ids=str)
def test_as_the_simulator_in_turn(rule: FreeRule, servers: int) -> None:
    tasks = 24
    made = simulated(rule, 2, [0, 1] * tasks, SOLVER, tasks)
    contributions = [0, 1] * (tasks // 2 // rule.tau)
    with fake_cuda(threads_tell=True):
        for z in trained(rule, contributions, SOLVER, tasks, servers=servers, system=EXACT):
            np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


def train_on(
    learners: Sequence[int], rule: Any, seed: int = 0, solver: SolverConf = CALM, epochs: int = 3, **more: Any
) -> list[Trained]:
    """Train on as many ranks, each with this number of learners on a GPU of its own. Hogwild's learners race on
    purpose."""

    def of(ranks: Ranks, own: int) -> Callable[[], Trained]:
        system = replace(GPU, devices=f"cuda:{ranks.rank}", learners_per_device=own, **more)
        return lambda: train(ranks, replace(MODEL, rule=rule), system, Limits(count=epochs), solver)

    with fake_cuda(len(learners), seed, races=not isinstance(rule, Hogwild), threads_tell=True):
        pairs_of = zip(FakeNetwork(len(learners)).ranks(), learners, strict=True)
        return at_once([of(*each) for each in pairs_of])


@one_in(2)
@pytest.mark.parametrize("rule", [AsynchronousSGD(), SSP(bound=1), EASGD(tau=2)], ids=str)
def test_several_servers_have_the_bits_of_one(rule: FreeRule) -> None:
    with fake_cuda(threads_tell=True):
        same_bits(rule, [0, 1, 2] * (18 // 3 // rule.tau), SOLVER, 18, system=EXACT)


@pytest.mark.parametrize(
    ("rule", "learners"), [(Gossip(probability=0.5), [1, 1]), (Gossip(probability=1, tau=2), [1, 2])], ids=str
)
def test_gossip_as_the_simulator_in_turn(rule: Gossip, learners: list[int]) -> None:
    with fake_cuda(threads_tell=True):
        check_in_turn(rule, learners, EXACT)


@one_in(7)
@pytest.mark.parametrize(
    "rule",
    [
        *RULES,
        Hogwild(),
        SSP(),
        PartiallySynchronous(),
        Grouping(2),
        RuleSequence(((SMA(), 4), (AsynchronousSGD(), 5), (EASGD(), 3))),
    ],
    ids=str,
)
@pytest.mark.parametrize("servers", [1, 2])
def test_all_ranks_have_the_same_model_and_count_alike(rule: Any, servers: int) -> None:
    """With tests in between, and statistics."""
    check_alike(train_on([1, 2], rule, servers=servers))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "solver", "options"),
    [
        (Gossip(probability=0.5), CALM, {}),
        (Hogwild(), SolverConf(method="adam", learning_rate=0.002), {}),
        (SSP(bound=1), replace(CALM, clip_gradient_norm=0.5), {}),
        (AsynchronousSGD(), CALM, {"graphs": False, "servers": 2}),
        (EASGD(), CALM, {"check_numerics": True}),
    ],
    ids=["gossip", "adam", "clipped", "single calls", "numbers are checked"],
)
def test_with_other_options(rule: Any, solver: SolverConf, options: dict[str, Any]) -> None:
    check_alike(train_on([1, 2], rule, 1, solver, **options))


def train_often(rule: Rule) -> None:
    """With the streams' work in several orders, of which some show a missing wait."""
    for seed in range(20):
        train_on([1, 2], rule, seed, servers=1 if isinstance(rule, Gossip) else 2, epochs=1)


def check_alike(found: list[Trained]) -> None:
    first, second = found
    assert same_weights(first.weights, second.weights)
    assert losses(first) == losses(second)
    assert first.history.records[-1].loss < first.history.records[0].loss


# Who waits for whom


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "servers"),
    [(AsynchronousSGD(), 2), (SSP(), 1), (EASGD(tau=2), 2), (Gossip(probability=1), 1)],
    ids=str,
)
def test_every_missing_wait_of_a_stream_is_reported(rule: Rule, servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        train_on([2, 1], rule, servers=servers, epochs=1)

    waits = {(one, other) for one, other in pairs(monkeypatch, run, None) if one != other}
    assert waits == {("learner-0", "exchanges"), ("learner-1", "exchanges")}
    for ignored in sorted(waits):
        with pytest.raises((CrossbowError, FakeError)) as caught:
            pairs(monkeypatch, run, ignored)
        assert any(isinstance(error, RaceError) for error in causes(caught.value)), ignored


@pytest.mark.slow
@pytest.mark.parametrize("rule", [AsynchronousSGD(), EASGD(), Gossip(probability=1)], ids=str)
@pytest.mark.parametrize("missing", ["copy to the host", "handling of a message"])
def test_every_missing_wait_of_the_host_is_reported(rule: Rule, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that are sent too early are not finite, or their memory is freed; others are overwritten."""
    wait = CudaMeeting._wait

    def some(meeting: CudaMeeting, event: Event) -> None:
        if (event is meeting._exchanged) != (missing == "handling of a message"):
            wait(meeting, event)

    monkeypatch.setattr(CudaMeeting, "_wait", some)
    with pytest.raises((CrossbowError, FakeError)) as caught:
        train_often(rule)
    assert any(isinstance(error, NonFiniteLossError | FakeError) for error in causes(caught.value))


@pytest.mark.slow
def test_coefficients_of_a_message_wait_for_those_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages to a learner may follow each other, without a task of the learner in between."""
    wait, store, stored = CudaMeeting._wait, CudaMeeting._store, dict[CudaMeeting, Event]()

    def store_alone(meeting: CudaMeeting, array: Any, vector: Any) -> None:
        store(meeting, array, vector)
        stream = meeting._between.stream
        with meeting._submitting, on(stream.place):
            stored.setdefault(meeting, Event(stream.device)).record(stream)

    def until_stored(meeting: CudaMeeting, event: Event) -> None:
        if event is not meeting._exchanged:
            wait(meeting, event)
        elif meeting in stored:
            wait(meeting, stored[meeting])

    monkeypatch.setattr(CudaMeeting, "_store", store_alone)
    monkeypatch.setattr(CudaMeeting, "_wait", until_stored)
    with pytest.raises((CrossbowError, FakeError)) as caught:
        train_often(Gossip(probability=1))
    assert any("were written over by the host before they were copied" in str(each) for each in causes(caught.value))


# When ranks leave, join, or fail


@one_in(8)
@pytest.mark.parametrize("fault", ["kill:0@3", "kill:1@3", "leave:2@3"])
@pytest.mark.parametrize(
    ("rule", "servers"),
    [(AsynchronousSGD(), 1), (AsynchronousSGD(), 2), (EASGD(tau=2), 2), (Grouping(), 1), (Gossip(), 1), (Hogwild(), 2)],
    ids=str,
)
def test_the_others_go_on_without_a_rank(monkeypatch: pytest.MonkeyPatch, rule: Rule, servers: int, fault: str) -> None:
    lost = int(fault[fault.index(":") + 1])
    model = replace(MODEL, rule=rule)
    with fake_cuda(races=not isinstance(rule, Hogwild), threads_tell=True):
        results, (departure,) = regrouping.train_and_lose(monkeypatch, fault, 3, model, system=GPU, servers=servers)
    assert [rank for rank, (weights, _) in enumerate(results) if weights is None] == [lost]
    assert (departure.ranks, departure.lost[0].rank.number) == (2, lost)
    first, second = (each for rank, each in enumerate(results) if rank != lost)
    assert same_weights(first[0], second[0])
    assert [record.epoch for record in first[1].records] == [1, 2, 3]
    assert first[1].records[-1].loss < math.log(3)  # that of a guess among three classes


@one_in(2)
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip()], ids=str)
def test_a_rank_joins(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    with fake_cuda(threads_tell=True):
        results, events = regrouping.train_and_join(
            monkeypatch, "join@2,kill:1@5", 2, replace(MODEL, rule=rule), system=GPU
        )
    assert [(each.tick, each.ranks) for each in events.arrivals] == [(2, 3)]
    assert [weights is None for weights, _ in results] == [False, True, False]
    assert same_weights(results[0][0], results[2][0])


@pytest.mark.slow
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip(probability=1)], ids=str)
def test_what_a_rank_keeps_of_statistics_and_z_is_its_part(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    """Although its learners have been aborted."""
    keep, kept = Exchange.keep_part, list[float]()

    def note(exchange: Exchange) -> Copies:
        copies, parts = keep(exchange), exchange._participants
        own = [on_host(replica.statistics[0]) for replica in parts.replicas]
        np.testing.assert_allclose(on_host(parts.base.statistics[0]), np.sum(own, axis=0) / 3, rtol=1e-5)
        if isinstance(exchange, PeerExchange):
            vectors = [on_host(vector) for each in parts.replicas for vector in (each.weights, each.received)]
            masses = (*exchange.masses.own, *exchange.masses.coming)
            z = sum(mass * vector for mass, vector in zip(masses, vectors, strict=True))
            np.testing.assert_allclose(on_host(parts.base.buffers[0]), z, rtol=1e-5, atol=1e-6)
        kept.append(copies.share)
        return copies

    monkeypatch.setattr(Exchange, "keep_part", note)
    with fake_cuda(threads_tell=True):
        regrouping.train_and_lose(monkeypatch, "kill:1@3", 3, replace(MODEL, rule=rule), system=GPU)
    assert kept == [1 / 3, 1 / 3]


def test_the_copy_of_a_lost_server_s_part_is_made_on_the_host() -> None:
    with fake_cuda():
        base, *weights = (to_device(np.arange(6.0) + first) for first in (0, 20, 30))
        exchange: Any = SimpleNamespace(
            _rank=0, _rule=EASGD(), _base=base, _complete=set(), _settled=[4] * 3, _read=[[5, 7]] * 3,
            _participants=SimpleNamespace(replicas=[SimpleNamespace(weights=each) for each in weights]),
        )  # fmt: skip
        assert ServedExchange._copy(exchange, 2, slice(4, 6)) == Copy(4, 6, 2, 7, 0)
        assert on_host(base).tolist() == [0, 1, 2, 3, 24 + 34, 25 + 35]


def fail_together(rule: Rule, fail: Callable[[Ranks], None]) -> list[str]:
    """The errors of two ranks, each with its own text first, after which their engines can be used. fail: called for
    each rank when its engine is there."""

    def of(ranks: Ranks) -> Callable[[], str]:
        def work() -> str:
            model = replace(MODEL, rule=rule)
            engine = engine_on(ranks, f"cuda:{ranks.rank}", model)
            fail(ranks)
            try:
                with pytest.raises(CrossbowError) as caught:
                    TrainingRun(engine, model, Limits(count=1000), (), test=False, ranks=ranks).run()
                engine.check_usable()
                assert all(np.isfinite(value).all() for value in engine.weights.values())
                return str(caught.value)
            finally:
                engine.close()

        return work

    with fake_cuda(2, threads_tell=True):
        return at_once([of(ranks) for ranks in FakeNetwork(2).ranks()])


@pytest.mark.slow
@pytest.mark.parametrize("thread", ["watcher-0", "crossbow-messages"])
def test_a_failure_in_one_rank_ends_all(monkeypatch: pytest.MonkeyPatch, thread: str) -> None:
    """On a learner's thread, or on that of messages."""
    arrive, arrivals = Server.arrive, list[int]()

    def failing(server: Server, learner: int, pace: Pace) -> list[int]:
        if threading.current_thread().name == thread:
            arrivals.append(learner)
            if len(arrivals) == 5:
                raise MemoryError("no luck")
        return arrive(server, learner, pace)

    monkeypatch.setattr(Server, "arrive", failing)
    first, second = fail_together(AsynchronousSGD(), lambda ranks: None)
    assert "MemoryError: no luck" in first
    assert "rank 0 (host0) failed: " in second


def test_after_a_failure_an_exchange_says_only_why() -> None:
    """Whoever lets others go on, or ends the session, finds that nothing goes on."""
    made: list[Any] = []

    def of(ranks: Ranks) -> Callable[[], None]:
        return lambda: made.append(engine_on(ranks, "cuda:0", replace(MODEL, rule=PartiallySynchronous())))

    with fake_cuda(threads_tell=True):
        at_once([of(ranks) for ranks in FakeNetwork(2).ranks()])
        (engine,) = (each for each in made if each.parts.setting.ranks.is_first)
        exchange = engine.coordination.exchange
        try:
            exchange.begin_session()
            exchange._done.add(1)
            engine.parts.flags.raise_abort()
            exchange.rest(0)
            with pytest.raises(CrossbowError, match="the context was closed during an exchange between ranks"):
                exchange.settle()
        finally:
            for each in made:
                each.close()


@pytest.mark.slow
def test_a_context_is_closed_while_ranks_exchange() -> None:
    """No thread or stream is left behind, and nothing waits for ever."""
    engines, errors = dict[int, Any](), list[str]()

    def of(ranks: Ranks) -> Callable[[], None]:
        def work() -> None:
            model = replace(MODEL, rule=AsynchronousSGD())
            engine = engines[ranks.rank] = engine_on(ranks, f"cuda:{ranks.rank}", model)
            with pytest.raises(CrossbowError) as caught:
                TrainingRun(engine, model, Limits(count=10_000), (), test=False, ranks=ranks).run()
            errors.append(str(caught.value))
            engine.close()

        return work

    def close() -> None:
        until(lambda: len(engines) == 2 and engines[0].merges > 5)
        engines[0].close()

    with fake_cuda(2, threads_tell=True):
        at_once([*(of(ranks) for ranks in FakeNetwork(2).ranks()), close])
    assert any("closed" in text for text in errors)


@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip()], ids=str)
def test_several_gpus_of_a_rank_are_refused(rule: Rule) -> None:
    with fake_cuda(4), pytest.raises(ConfigurationError, match="rule must be one with a barrier on several GPUs"):
        at_once(
            [
                lambda ranks=ranks: engine_on(ranks, "cuda:0,cuda:1", replace(MODEL, rule=rule))
                for ranks in FakeNetwork(2).ranks()
            ]
        )


def test_nccl_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(fake: FakeCuda) -> None:
        raise ConfigurationError("expected NCCL")

    (first, _), system = FakeNetwork(2).ranks(), SystemConf(devices="cuda:0", learners_per_device=1)
    monkeypatch.setattr(backend, "join", lambda: first)
    monkeypatch.setattr(FakeCuda, "nccl", property(missing, lambda fake, nccl: None), raising=False)
    with fake_cuda(2):
        assert new_backend(AsynchronousSGD(), system).device_of == [0]
