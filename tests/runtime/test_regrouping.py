"""Training goes on when a rank is lost: no task is missed or counted twice, and the bits depend on nothing else."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    Constant,
    Dataflow,
    History,
    ModelConf,
    Phase,
    Record,
    SolverConf,
    SystemConf,
    TestResult,
)
from crossbow.cluster.admission import Admission, Joining, Journal
from crossbow.cluster.failure import ASKED_TO_LEAVE, LOST
from crossbow.cluster.fault import Fault
from crossbow.cluster.members import GivenUp, Left, NotJoined, Rank, Terminated, ViewChangedError
from crossbow.cluster.ranks import LOSS, Ranks
from crossbow.compile import ModelLayout, share_of
from crossbow.compile.model import Segment
from crossbow.kernels.cpu.storage import BlockedStorage
from crossbow.kernels.interface import PlainStorage
from crossbow.ops import BatchNorm, InnerProduct, ReLU
from crossbow.ops.kernel import VariableSpec
from crossbow.runtime import changing_engine, regrouping
from crossbow.runtime.copies import WHOLE, Copies, Copy
from crossbow.runtime.engine import Engine
from crossbow.runtime.free import FreeCoordination
from crossbow.runtime.hosts import HostExchange
from crossbow.runtime.limits import Limits
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.new_view import Departure, NewCoordinator, NewRanks
from crossbow.runtime.reports import Reports
from crossbow.runtime.run import Renewal, TrainingRun
from crossbow.runtime.served import ServedExchange
from crossbow.runtime.snapshot import Snapshot
from crossbow.runtime.task import Completed, Failed
from crossbow.solver import Pace
from crossbow.synch import (
    EASGD,
    RULES,
    SSP,
    AsynchronousSGD,
    Default,
    DiLoCo,
    FreeRule,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PartiallySynchronous,
    PeerRule,
    PolyakRuppert,
    Rule,
    RuleSequence,
    SynchronousEASGD,
    TwoLevel,
    WeedOut,
    has_two_levels,
    simulate,
)
from crossbow.types import ConfigurationError, CrossbowError, TrainingUnit
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.cluster.ray.processes import Processes
from tests.combinations import one_in
from tests.runtime import test_hosts as least_squares
from tests.support import FAST_KERNELS, blobs, same_weights, training, until

DATA = blobs(83, 29)
MODEL = ModelConf(batch_size=4)
SYSTEM = SystemConf(kernels=FAST_KERNELS, threads_per_learner=1, seed=3, learners_per_device=1)
SOLVER = SolverConf(learning_rate=0.05, momentum=0.9)


class Killed(BaseException):
    """The end of a rank's thread in place of its process."""


class Departures(Monitor):
    def __init__(self) -> None:
        self.found: list[Departure] = []
        self.arrivals: list[NewRanks] = []
        self.coordinators: list[NewCoordinator] = []
        self.then: Callable[[], None] = lambda: None
        """Called after ranks have left."""

    def left(self, departure: Departure) -> None:
        self.found.append(departure)
        self.then()

    def joined(self, arrival: NewRanks) -> None:
        self.arrivals.append(arrival)

    def coordinator(self, event: NewCoordinator) -> None:
        self.coordinators.append(event)


class HoldsFirstRecord(Monitor):
    """Lets training go on after the first epoch only when a rank has joined or waits to join."""

    def __init__(self, admission: Admission) -> None:
        self._admission, self._joined = admission, False

    def joined(self, arrival: NewRanks) -> None:
        self._joined = True

    def record(self, record: Record) -> None:
        until(lambda: self._joined or self._admission.wanted)


def new_engine(model: ModelConf, ranks: Ranks | None, system: SystemConf = SYSTEM) -> Any:
    flow = training(InnerProduct(number_of_outputs=8), BatchNorm(), ReLU(), InnerProduct(number_of_outputs=3))
    check = Dataflow(flow.subgraph).set_phase(Phase.CHECK)
    return changing_engine.new_engine(flow.graph, check.graph, DATA, model, SOLVER, system, ranks=ranks)


def train(
    ranks: Ranks, model: ModelConf, monitors: tuple[Monitor, ...], system: SystemConf = SYSTEM, calls: int = 1
) -> tuple[Any, History]:
    """Train for three epochs, so many times, each of which is followed by a test. Returns the weights, and the history
    of the last call, with the records of all."""
    engines = [new_engine(model, ranks, system)]

    def rebuild() -> Engine:
        engines.append(new_engine(model, ranks, system))
        return engines[-1]

    def lead(run: TrainingRun) -> None:
        assert ranks.is_first
        run.monitors = monitors

    try:
        records: list[Record] = []
        for _ in range(calls):
            shown = monitors if ranks.is_first else ()
            run = TrainingRun(engines[-1], model, Limits(count=3), shown, test=True, ranks=ranks)
            history = run.run(Renewal(rebuild, lead))
            records += history.records
            if calls > 1:
                tested = ranks.together(lambda: asdict(engines[-1].test()))
                assert history.records[-1].test == TestResult(**tested)
        history.records[:] = records
        return engines[-1].weights, history
    except Killed:
        return None, History()
    finally:
        engines[-1].close()


def train_and_lose(
    monkeypatch: pytest.MonkeyPatch,
    faults: str,
    size: int,
    model: ModelConf = MODEL,
    *,
    reached: bool = True,
    asked: int | None = None,
    needed: int = 1,
    signal: int = 0,
    system: SystemConf = SYSTEM,
    servers: int = 1,
) -> tuple[list[tuple[Any, History]], list[Departure]]:
    """Train on as many ranks, some of which are lost or leave; their results are None.

    reached: whether lost ranks are dead, and not only out of reach. asked: a rank that is asked to leave at once.
    needed: number of ranks without which training pauses. signal: the launcher's to rank 0 after a loss; 0 for none.
    """
    monkeypatch.setenv("CROSSBOW_FAULT", faults)
    processes, departures = Processes(["host"] * size, needed), Departures()
    all_ranks = processes.ranks()
    departures.then = lambda: all_ranks[0].stop(signal)
    if asked is not None:
        all_ranks[asked].leave()

    def strike(fault: Fault) -> None:
        processes.lose(processes.roster.alive[fault.rank])
        if reached:
            raise Killed

    monkeypatch.setattr(Fault, "strike", strike)

    def of(ranks: Ranks) -> Callable[[], tuple[Any, History]]:
        def work() -> tuple[Any, History]:
            try:
                return train(ranks, model, (departures,), replace(system, servers=servers))
            except Left:
                processes.lose(processes.process_of(ranks), ASKED_TO_LEAVE)
            except GivenUp:
                assert not reached
            return None, History()

        return work

    return at_once([of(ranks) for ranks in all_ranks]), departures.found


def continued(model: ModelConf, before: int, after: int, tick: int) -> Any:
    """The weights of one process that begins with some learners, and goes on with others after a tick."""
    snapshot: Snapshot | None = None
    weights = None
    for learners in (before, after):
        flow = training(InnerProduct(number_of_outputs=8), BatchNorm(), ReLU(), InnerProduct(number_of_outputs=3))
        check, system = Dataflow(flow.subgraph).set_phase(Phase.CHECK), replace(SYSTEM, learners_per_device=learners)
        engine = Engine(flow.graph, check.graph, DATA, model, SOLVER, system)
        try:
            if snapshot is not None:
                form = {**snapshot.state["form"], "learners": before + after}  # so that only the base model fits
                base = replace(snapshot, vectors={}, state={**snapshot.state, "form": form})
                assert not engine.restore(base, "the engine before")
            all_tasks = engine.order.tasks_in_epochs(3)
            tasks = tick * engine.clock.tasks_per_tick if snapshot is None else all_tasks - engine.tasks
            TrainingRun(engine, model, Limits(count=tasks, unit=TrainingUnit.TASKS), (), test=False).run()
            snapshot, weights = engine.snapshot(), engine.weights
        finally:
            engine.close()
    return weights


MORE_BARRIERS = (SynchronousEASGD(), ModelAveraging(tau=2), PolyakRuppert(), DiLoCo(tau=2))


@one_in(2)
@pytest.mark.parametrize(
    ("rule", "lost"),
    [
        (SMA(), 1),
        (SMA(tau=2), 2),
        (SSGD(), 1),
        (SMA(), 0),
        *(pytest.param(rule, 1, marks=pytest.mark.slow) for rule in MORE_BARRIERS),
    ],
    ids=str,
)
def test_it_goes_on_from_the_newest_whole_base_model(monkeypatch: pytest.MonkeyPatch, rule: Rule, lost: int) -> None:
    model = replace(MODEL, rule=rule)
    results, (departure,) = train_and_lose(monkeypatch, f"kill:{lost}@3", 3, model)
    assert results.pop(lost)[0] is None
    expected = continued(model, 3, 2, 3)
    for weights, history in results:
        assert same_weights(weights, expected)
        assert history.records[-1].epoch == 3
        assert len(history.records) == 3
    assert [each.test for each in results[0][1].records] == [each.test for each in results[1][1].records]
    assert (departure.tick, departure.ranks, departure.learners, departure.view) == (3, 2, 2, 1)
    assert str(departure).startswith(
        f"rank {lost} (host) left: killed. Training goes on after task {departure.tasks}, "
    )


def ranks_continued(model: ModelConf, before: int, after: int, tick: int, system: SystemConf = SYSTEM) -> Any:
    """The weights of ranks that begin as many, and go on as fewer or more after a tick of z."""
    found: Any = None
    for size in (before, after):
        start = found

        def of(ranks: Ranks, start: Any = start) -> Callable[[], tuple[Snapshot, Any]]:
            return lambda: _part(model, system, ranks, start, tick)

        found, weights = at_once([of(ranks) for ranks in FakeNetwork(size).ranks()])[0]
    return weights


def _part(
    model: ModelConf, system: SystemConf, ranks: Ranks, start: Snapshot | None, tick: int
) -> tuple[Snapshot, Any]:
    """Train for some ticks, or from a base model to the end."""
    engine = new_engine(model, ranks, system)
    try:
        tasks = tick * engine.clock.tasks_per_tick
        if start is not None:
            engine.restore(Snapshot(start.variables, {}, start.state), "the engine before")
            tasks = engine.order.tasks_in_epochs(3) - engine.tasks
        limits = Limits(count=tasks, unit=TrainingUnit.TASKS)
        TrainingRun(engine, model, limits, (), test=False, ranks=ranks).run()
        return engine.snapshot(), engine.weights
    finally:
        engine.close()


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize(
    "rule",
    [
        TwoLevel(SMA(), ModelAveraging(tau=2)),
        TwoLevel(SMA(), DiLoCo(tau=2)),
        RuleSequence(((TwoLevel(SMA(), ModelAveraging(tau=2)), 6), (TwoLevel(SSGD(), DiLoCo(tau=2)), 4))),
    ],
    ids=str,
)
def test_two_levels_go_on_from_the_newest_whole_base_model(
    monkeypatch: pytest.MonkeyPatch, rule: TwoLevel | RuleSequence
) -> None:
    model = replace(MODEL, rule=rule)
    expected = ranks_continued(model, 3, 2, 2)
    results, (departure,) = train_and_lose(monkeypatch, "kill:1@4", 3, model)
    assert [weights is None for weights, _ in results] == [False, True, False]
    assert all(same_weights(results[rank][0], expected) for rank in (0, 2))
    assert (departure.tick, departure.tasks, departure.ranks) == (4, 12, 2)


def fail_in_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rank 1 of 3 be lost at tick 4, when the others exchange."""
    exchange = HostExchange.exchange

    def fail(self: HostExchange, pace: Pace, tick: int) -> None:
        if tick == 4 and self._ranks.size == 3 and self._ranks.rank == 1:
            Fault(1, tick).strike()
        exchange(self, pace, tick)

    monkeypatch.setattr(HostExchange, "exchange", fail)


@pytest.mark.slow
@pytest.mark.parametrize("sum_order", ["chain", "tree"])
def test_a_rank_that_is_lost_while_others_wait_for_its_exchange(
    monkeypatch: pytest.MonkeyPatch, sum_order: Any
) -> None:
    fail_in_exchange(monkeypatch)
    model, system = replace(MODEL, rule=TwoLevel(SMA(), ModelAveraging(tau=2))), replace(SYSTEM, sum_order=sum_order)
    results, (departure,) = train_and_lose(monkeypatch, "", 3, model, system=system)
    assert (departure.tick, departure.tasks, departure.ranks) == (2, 6, 2)
    assert same_weights(results[0][0], results[2][0])


@pytest.mark.slow
@pytest.mark.parametrize("rule", [SMA(), TwoLevel(SMA(), ModelAveraging(tau=2))], ids=str)
def test_a_rank_that_leaves_takes_no_result_with_it(monkeypatch: pytest.MonkeyPatch, rule: Rule | TwoLevel) -> None:
    model = replace(MODEL, rule=rule)
    results, (departure,) = train_and_lose(monkeypatch, "leave:1@4", 3, model)
    again, _ = train_and_lose(monkeypatch, "leave:1@4", 3, model)
    assert [weights is None for weights, _ in results] == [False, True, False]
    lost = departure.lost[0]
    assert (departure.tick, departure.ranks, lost.rank.number, lost.reason) == (4, 2, 1, ASKED_TO_LEAVE)
    for rank in (0, 2):
        assert same_weights(results[rank][0], again[0][0])
        assert [each.loss for each in results[rank][1].records] == [each.loss for each in again[0][1].records]
    if isinstance(rule, SMA):
        assert same_weights(results[0][0], continued(model, 3, 2, 4))


def test_a_rank_that_is_asked_to_leave_finishes_its_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    results, (departure,) = train_and_lose(monkeypatch, "", 3, asked=2)
    assert [weights is None for weights, _ in results] == [False, False, True]
    assert departure.lost[0].reason == ASKED_TO_LEAVE
    assert departure.tasks == 3 * departure.tick
    assert results[0][1].records[-1].epoch == 3
    assert same_weights(results[0][0], results[1][0])


def test_rank_0_leaves_if_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    results, (departure,) = train_and_lose(monkeypatch, "", 3, asked=0)
    assert [weights is None for weights, _ in results] == [True, False, False]
    assert (departure.lost[0].rank.number, departure.lost[0].reason) == (0, ASKED_TO_LEAVE)
    assert results[1][1].records[-1].epoch == 3
    assert same_weights(results[1][0], results[2][0])


def test_without_others_rank_0_ends_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Terminated):
        train_and_lose(monkeypatch, "kill:1@2,leave:0@5", 2)


@pytest.mark.slow
def test_ranks_take_the_place_of_rank_0_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    results, departures = train_and_lose(monkeypatch, "kill:0@2,kill:0@5", 3)
    assert [weights is None for weights, _ in results] == [True, True, False]
    assert [(each.ranks, each.tick, each.lost[0].rank.number) for each in departures] == [(2, 2, 0), (1, 5, 0)]
    assert results[2][1].stopped == "count"
    assert [record.epoch for record in results[2][1].records] == [1, 2, 3]
    again, _ = train_and_lose(monkeypatch, "kill:0@2,kill:0@5", 3)
    assert same_weights(results[2][0], again[2][0])


def test_a_rank_that_others_have_given_up_ends_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, (departure,) = train_and_lose(monkeypatch, "kill:1@3", 3, reached=False)
    assert [weights is None for weights, _ in results] == [False, True, False]
    assert capsys.readouterr().err.count("the other ranks go on without this one") == 1
    assert (departure.tick, departure.ranks) == (3, 2)
    assert all(same_weights(results[rank][0], continued(MODEL, 3, 2, 3)) for rank in (0, 2))


@pytest.mark.slow
def test_rank_0_goes_on_alone_after_two_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    results, departures = train_and_lose(monkeypatch, "kill:1@2,kill:1@5", 3)
    assert [weights is None for weights, _ in results] == [False, True, True]
    assert [(each.ranks, each.tick) for each in departures] == [(2, 2), (1, 5)]
    assert results[0][1].stopped == "count"
    again, _ = train_and_lose(monkeypatch, "kill:1@2,kill:1@5", 3)
    assert same_weights(results[0][0], again[0][0])


def train_and_join(
    monkeypatch: pytest.MonkeyPatch,
    faults: str,
    size: int,
    model: ModelConf = MODEL,
    *,
    admits: bool = True,
    needed: int = 1,
    system: SystemConf = SYSTEM,
    calls: int = 1,
) -> tuple[list[tuple[Any, History]], Departures]:
    """Train on some ranks, which another one joins. admits: whether it lives until it does. needed: number of ranks
    without which training pauses. calls: number of training calls."""
    monkeypatch.setenv("CROSSBOW_FAULT", faults)
    processes, events, admission = Processes(["host"] * size, needed), Departures(), Admission()
    all_ranks = processes.ranks(admission)
    joiner: list[Joining] = []

    def strike(fault: Fault) -> None:
        processes.lose(processes.roster.alive[fault.rank])
        raise Killed

    monkeypatch.setattr(Fault, "strike", strike)

    def of(ranks: Ranks) -> Callable[[], tuple[Any, History]]:
        monitors = (events,) if faults else (events, HoldsFirstRecord(admission))
        return lambda: train(ranks, model, monitors, system, calls)

    def join() -> tuple[Any, History]:
        ranks, joining = processes.new("new", admission)
        joiner.append(joining)
        assert ranks.joins
        if not admits:
            return None, History()
        try:
            return train(ranks, model, (), system, calls)
        except NotJoined:
            processes.lose(size, "it could not join")
            return None, History()

    def launch() -> tuple[Any, History]:
        until(lambda: joiner)
        answer: Journal | str | None = ""
        while answer is not None:
            arrived = joiner[0].await_arrival() if admits else (len(joiner[0].entries), True)
            assert arrived is not None
            if needed > 1:  # others could train now
                until(lambda: events.found)
                time.sleep(0.2)
            if (answer := admission.request(arrived[0], trains=arrived[1])) is not None:
                joiner[0].go_on(answer)
        processes.join(size)
        if not admits:
            processes.lose(size)
        return None, History()

    return at_once([*map(of, all_ranks), join, launch])[:-1], events


@one_in(2)
@pytest.mark.parametrize(
    ("size", "rule"),
    [
        (2, SMA()),
        (1, SMA()),
        (2, SSGD()),
        *(pytest.param(2, replace(rule, tau=1), marks=pytest.mark.slow) for rule in MORE_BARRIERS),
    ],
    ids=str,
)
def test_a_rank_joins_at_a_tick(monkeypatch: pytest.MonkeyPatch, size: int, rule: Rule) -> None:
    model = replace(MODEL, rule=rule)
    results, events = train_and_join(monkeypatch, "join@4", size, model)
    (arrival,) = events.arrivals
    assert (arrival.new, arrival.view, arrival.tick) == ((Rank(size, "new"),), 1, 4)
    assert (arrival.ranks, arrival.learners, arrival.tasks) == (size + 1, size + 1, 4 * size)
    assert str(arrival).startswith(f"rank {size} (new) joined. Training goes on after task {4 * size}, with")
    expected = continued(model, size, size + 1, 4)
    for weights, history in results:
        assert same_weights(weights, expected)
        assert [each.tasks for each in history.records] == [each.tasks for each in results[0][1].records]
        assert history.records[-1].epoch == 3
    last = [history.records[-1].loss for _, history in results]
    assert len(set(last)) == 1


@pytest.mark.slow
def test_a_rank_joins_two_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(MODEL, rule=TwoLevel(SMA(), ModelAveraging(tau=2)))
    results, events = train_and_join(monkeypatch, "join@4", 2, model)
    assert [(each.tick, each.ranks) for each in events.arrivals] == [(4, 3)]
    expected = ranks_continued(model, 2, 3, 2)
    assert all(same_weights(weights, expected) for weights, _ in results)


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize("faults", ["join@4", "join@35", "join@35,kill:0@40", "join@30"])
def test_a_rank_joins_any_training_call(monkeypatch: pytest.MonkeyPatch, faults: str) -> None:
    """The first call has 30 ticks."""
    results, events = train_and_join(monkeypatch, faults, 2, calls=2)
    kills = "kill" in faults
    assert [(each.tick, each.ranks) for each in events.arrivals] == [(int(faults[5:7].rstrip(",")), 3)]
    assert [(each.tick, each.ranks) for each in events.found] == ([(40, 2)] if kills else [])
    assert [(each.rank.number, each.tick) for each in events.coordinators] == ([(1, 40)] if kills else [])
    living = [result for result in results if result[0] is not None]
    assert len(living) == 3 - kills
    for weights, history in living:
        assert same_weights(weights, living[0][0])
        assert [int(record.epoch) for record in history.records] == [1, 2, 3, 4, 5, 6]
        assert [(each.tasks, each.loss, each.test) for each in history.records] == [
            (each.tasks, each.loss, each.test) for each in living[0][1].records
        ]


def test_a_rank_that_trains_differently_does_not_join(capsys: pytest.CaptureFixture[str]) -> None:
    processes, admission = Processes(["host"]), Admission()
    (first,) = processes.ranks(admission)
    train(first, MODEL, (), calls=1)
    first.begin_training(elastic=True)
    ranks, _ = processes.new("new", admission)
    engine = new_engine(MODEL, ranks)
    run = TrainingRun(engine, MODEL, Limits(count=4), (), test=True, ranks=ranks)
    expected = r"same program as the other ranks: expected a training call with .*'count': 3.* Received: .*'count': 4"
    with pytest.raises(NotJoined):
        run.run(Renewal(lambda: engine))
    assert re.search(expected, capsys.readouterr().err)
    engine.close()


def test_a_rank_for_which_there_is_no_place_leaves_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule does not support as many learners, or a rank lacks memory for them."""
    create = new_engine

    def refuse(model: ModelConf, ranks: Ranks, system: SystemConf = SYSTEM) -> Any:
        if ranks.size == 3 and not ranks.joins:
            raise ConfigurationError("expected at most two learners")
        return create(model, ranks, system)

    monkeypatch.setattr(sys.modules[__name__], "new_engine", refuse)
    results, events = train_and_join(monkeypatch, "join@4", 2)
    assert [weights is None for weights, _ in results] == [False, False, True]
    assert all(same_weights(weights, continued(MODEL, 2, 2, 4)) for weights, _ in results[:2])
    (departure,) = events.found
    assert "rank 2 (new) left: it could not join. Training goes on after task 8, with 2 ranks" in str(departure)
    assert events.arrivals == []
    said = "error: with 3 ranks, training cannot go on: expected at most two learners\n"
    assert capsys.readouterr().err == said


def test_a_rank_for_which_there_is_no_place_leaves_although_others_had_to_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when one more rank is lost while they look for the newest model."""
    create, find, anew = new_engine, regrouping._newest, list[int]()

    def refuse(model: ModelConf, ranks: Ranks, system: SystemConf = SYSTEM) -> Any:
        if ranks.size == 3 and not ranks.joins:
            raise ConfigurationError("expected at most two learners")
        return create(model, ranks, system)

    def begin_anew(ranks: Ranks, *given: Any) -> Any:
        if ranks.size == 3 and ranks.rank not in anew:
            anew.append(ranks.rank)
            raise ViewChangedError
        return find(ranks, *given)

    monkeypatch.setattr(sys.modules[__name__], "new_engine", refuse)
    monkeypatch.setattr(regrouping, "_newest", begin_anew)
    results, events = train_and_join(monkeypatch, "join@4", 2)
    assert sorted(anew) == [0, 1, 2]
    assert [weights is None for weights, _ in results] == [False, False, True]
    (departure,) = events.found
    assert "rank 2 (new) left: it could not join. Training goes on after task 8, with 2 ranks" in str(departure)
    assert events.arrivals == []


IN_TURN = RuleSequence(((TwoLevel(SMA(), DiLoCo(tau=2)), 3), (TwoLevel(SSGD(), PolyakRuppert(0.25, tau=2)), 4)))


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (SMA(base_momentum=0.25), "kill:1@5"),
        (TwoLevel(SMA(), DiLoCo(tau=2)), "kill:1@4"),
        (TwoLevel(SMA(), SMA(tau=2)), "kill:1@4"),
        (TwoLevel(SMA(), DiLoCo(tau=2)), "join@4"),
        (TwoLevel(PolyakRuppert(0.25), SMA(tau=2, base_momentum=0.5)), "join@4"),
        (IN_TURN, "kill:1@2"),
        (IN_TURN, "kill:1@4"),
        (IN_TURN, "join@4"),
        (RuleSequence(((SMA(), 3), (PolyakRuppert(0.25), 4))), "kill:1@5"),
        (RuleSequence(((SSGD(), 3), (Grouping(((0, 2, 1),)), 2))), "kill:1@2"),
        (RuleSequence(((ModelAveraging(), 3), (Default(), 4))), "kill:1@2"),
    ],
    ids=str,
)
def test_training_goes_on_as_in_the_simulator(
    monkeypatch: pytest.MonkeyPatch, rule: Rule | RuleSequence | TwoLevel, fault: str
) -> None:
    """A task takes 1. Learner 1 is lost in the middle of the task after the given tick, or learner 2 joins at the end
    of that tick."""

    def create(model: ModelConf, ranks: Ranks, system: SystemConf = SYSTEM) -> Any:
        return least_squares.engine_of(ranks, model.rule, SOLVER, replace(least_squares.SYSTEM, learners_per_device=1))

    monkeypatch.setattr(sys.modules[__name__], "new_engine", create)
    tick, model, change = int(fault[-1]), replace(MODEL, rule=rule), dict[str, Any]()
    if fault.startswith("kill"):
        before, after, change = 3, 2, {"leave": [(tick + 0.5, 1)]}
        results, _ = train_and_lose(monkeypatch, fault, before, model)
    else:
        before, after, change = 2, 3, {"join": [(tick - 0.5, 2)]}
        results, _ = train_and_join(monkeypatch, fault, before, model)
    epochs, first, per_tick = 3 * least_squares.EXAMPLES // least_squares.BATCH, tick * before, after * rule.tau
    expected = simulate(
        rule, initial=[least_squares.START] * least_squares.FEATURES, gradient=least_squares.gradient, solver=SOLVER,
        learners=before, hosts=[1, 1, 1] if has_two_levels(rule) else None, speeds=[1.0] * 3,
        tasks=first - (first - epochs) // per_tick * per_tick, **change,
    )  # fmt: skip
    found = [least_squares.flat(weights) for weights, _ in results if weights is not None]
    assert len(found) == after
    for weights in found:
        np.testing.assert_allclose(weights, expected.base[-1], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["kill:1@4", "join@4"])
def test_groups_in_a_sequence_are_fitted(monkeypatch: pytest.MonkeyPatch, faults: str) -> None:
    """Phases of Grouping(…) with two groups of a learner, or of two; without a barrier, all weights are z."""
    groups = Grouping(groups=((0,), (1,))) if faults == "join@4" else Grouping(groups=((0, 1), (2,)))
    model = replace(MODEL, rule=RuleSequence(((groups, 4), (SSGD(), 2))))
    if faults == "join@4":
        results, _ = train_and_join(monkeypatch, faults, 2, model)
    else:
        results, _ = train_and_lose(monkeypatch, faults, 3, model)
    living = [history for weights, history in results if weights is not None]
    assert len(living) == (3 if faults == "join@4" else 2)
    assert all([record.epoch for record in history.records] == [1, 2, 3] for history in living)


def test_without_a_new_rank_a_refusal_ends_training(monkeypatch: pytest.MonkeyPatch) -> None:
    create = new_engine

    def refuse(model: ModelConf, ranks: Ranks, system: SystemConf = SYSTEM) -> Any:
        if ranks.size == 2:
            raise ConfigurationError("expected three learners")
        return create(model, ranks, system)

    monkeypatch.setattr(sys.modules[__name__], "new_engine", refuse)
    with pytest.raises(ConfigurationError, match="expected three learners"):
        train_and_lose(monkeypatch, "kill:1@4", 3)


def test_ranks_leave_and_join_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    results, events = train_and_join(monkeypatch, "join@2,kill:1@5", 2)
    assert [(each.tick, each.ranks) for each in events.arrivals] == [(2, 3)]
    assert [(each.tick, each.ranks) for each in events.found] == [(5, 2)]
    assert [weights is None for weights, _ in results] == [False, True, False]
    assert same_weights(results[0][0], results[2][0])


@pytest.mark.slow
def test_with_too_few_ranks_training_pauses_until_another_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ranks_continued(MODEL, 3, 3, 3)
    results, events = train_and_join(monkeypatch, "kill:1@3,join@1000", 3, needed=3)
    assert [(each.tick, each.tasks, each.ranks, each.enough) for each in events.found] == [(3, 9, 2, False)]
    assert [(each.tick, each.tasks, each.ranks, each.enough) for each in events.arrivals] == [(3, 9, 3, True)]
    assert [weights is None for weights, _ in results] == [False, True, False, False]
    assert all(same_weights(results[rank][0], expected) for rank in (0, 2, 3))
    assert results[0][1].records[-1].epoch == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (LOSS, SystemExit)]
)
def test_a_pause_ends_when_the_launcher_says_so(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException]
) -> None:
    left: list[Departure] = []
    monkeypatch.setattr(Departures, "left", lambda events, departure: (left.append(departure), events.then()))
    with pytest.raises(error) as raised:
        train_and_lose(monkeypatch, "kill:1@3", 3, needed=3, signal=number)
    assert type(raised.value) is error
    assert number != LOSS or raised.value.code == LOST
    assert [(each.tick, each.enough) for each in left] == [(3, False)]


def test_without_a_fault_a_rank_joins_at_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    results, events = train_and_join(monkeypatch, "", 2)
    (arrival,) = events.arrivals
    assert (arrival.ranks, arrival.tasks) == (3, 2 * arrival.tick)
    assert [len(history.records) for _, history in results] == [3, 3, 3]
    assert all(same_weights(weights, results[0][0]) for weights, _ in results)


def test_a_rank_that_ends_while_it_joins_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    results, events = train_and_join(monkeypatch, "join@4", 2, admits=False)
    assert [weights is None for weights, _ in results] == [False, False, True]
    assert [each.rank.number for departure in events.found for each in departure.lost] == [2]
    assert same_weights(results[0][0], results[1][0])
    assert results[0][1].records[-1].epoch == 3


FREE = (AsynchronousSGD(), EASGD(tau=2), Gossip())
MORE_FREE = (
    AsynchronousSGD(sends="gradient"),
    SSP(),
    PartiallySynchronous(),
    Hogwild(),
    Default(),
    WeedOut(),
    Grouping(),
)


@pytest.mark.parametrize("rule", [*FREE, *(pytest.param(rule, marks=pytest.mark.slow) for rule in MORE_FREE)], ids=str)
def test_without_a_barrier_the_others_go_on(monkeypatch: pytest.MonkeyPatch, rule: FreeRule | PeerRule) -> None:
    """What they have done ahead of the lost rank is not done again."""
    done, known, first = list[int](), list[int](), 3 * 3 * rule.tau
    abandoned = set[FreeCoordination]()
    report, abandon, add = FreeCoordination._report, FreeCoordination.abandon, Reports.add

    def note(coordination: FreeCoordination, result: Completed | Failed) -> None:
        trains = coordination._unfinished or coordination in abandoned  # and does not test
        if isinstance(result, Completed) and trains:
            done.append(result.task)
        report(coordination, result)

    def note_end(coordination: FreeCoordination) -> bool:
        """After it, running tasks are finished."""
        abandoned.add(coordination)
        return abandon(coordination)

    def arrive(reports: Reports, result: Completed | Failed) -> None:
        add(reports, result)
        if isinstance(result, Completed):
            known.append(result.task)

    def lose(processes: Processes, process: int) -> None:
        """The loss is noticed when rank 2 has done a task ahead, and both others know."""
        until(lambda: known.count(first + 2) == 2)
        lose_at_once(processes, process)

    lose_at_once = Processes.lose
    monkeypatch.setattr(FreeCoordination, "_report", note)
    monkeypatch.setattr(FreeCoordination, "abandon", note_end)
    monkeypatch.setattr(Reports, "add", arrive)
    monkeypatch.setattr(Processes, "lose", lose)
    results, (departure,) = train_and_lose(monkeypatch, "kill:1@3", 3, replace(MODEL, rule=rule))
    assert [weights is None for weights, _ in results] == [False, True, False]
    assert (departure.ranks, departure.learners) == (2, 2)
    assert departure.tasks in (first, first + 1)
    assert same_weights(results[0][0], results[2][0])
    for _, history in (results[0], results[2]):
        assert [record.epoch for record in history.records] == [1, 2, 3]
    assert done.count(first) == done.count(first + 2) == 1
    assert {*done} == {*range(max(done) + 1)}
    assert results[0][1].records[-1].tasks == max(done) + 1


@pytest.mark.parametrize("rule", [*FREE, *(pytest.param(rule, marks=pytest.mark.slow) for rule in MORE_FREE)], ids=str)
def test_without_a_barrier_rank_0_is_replaced(monkeypatch: pytest.MonkeyPatch, rule: FreeRule | PeerRule) -> None:
    results, (departure,) = train_and_lose(monkeypatch, "kill:0@3", 3, replace(MODEL, rule=rule))
    assert [weights is None for weights, _ in results] == [True, False, False]
    assert (departure.ranks, departure.learners, departure.lost[0].rank.number) == (2, 2, 0)
    assert departure.tasks >= 3 * 3 * rule.tau
    assert same_weights(results[1][0], results[2][0])
    for _, history in results[1:]:
        assert [record.epoch for record in history.records] == [1, 2, 3]
        assert history.records[-1].loss < math.log(3)  # that of a guess among three classes


@pytest.mark.slow
@pytest.mark.parametrize("rule", [EASGD(tau=2), AsynchronousSGD(tau=2)], ids=str)
def test_without_rank_0_z_is_what_learners_have_of_it(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    """The weights of the learner that has read it last or, if they do not continue with it, their mean."""
    left, restored = list[tuple[int, Any]](), list[tuple[Any, Any]]()
    keep, restore, add = ServedExchange.keep_part, Engine.restore, Reports.add
    processes, lost, unknown = Processes(["host"] * 3), threading.Event(), {7, 8}

    def note(exchange: ServedExchange) -> Copies:
        if exchange.server is None:
            (replica,) = exchange._participants.replicas
            left.append((exchange._read[0][0], np.array(replica.weights)))
        return keep(exchange)

    def note_restored(engine: Engine, snapshot: Snapshot, source: str) -> bool:
        latest = max(read for read, _ in left)
        newest = [weights for read, weights in left if read == latest or isinstance(rule, EASGD)]
        expected = np.mean(newest, axis=0, dtype=np.float32)
        restored.append((snapshot.variables, engine.program.model.export(expected)))
        return restore(engine, snapshot, source)

    def arrive(reports: Reports, result: Completed | Failed) -> None:
        add(reports, result)
        unknown.discard(result.task)
        if not unknown and not lost.is_set():  # both others have exchanged, and are in the middle of a tick
            lost.set()
            processes.lose(0)

    def work(ranks: Ranks) -> None:
        with contextlib.suppress(*((CrossbowError, GivenUp) if ranks.rank == 0 else ())):
            train(ranks, replace(MODEL, rule=rule), ())

    monkeypatch.setattr(ServedExchange, "keep_part", note)
    monkeypatch.setattr(Engine, "restore", note_restored)
    monkeypatch.setattr(Reports, "add", arrive)
    first, *others = processes.ranks()
    threading.Thread(target=work, args=(first,), daemon=True).start()
    at_once([functools.partial(work, ranks) for ranks in others])
    assert len(left) == len(restored) == 2
    assert all(read for read, _ in left)
    for variables, mean in restored:
        for name, value in mean.items():
            np.testing.assert_allclose(variables[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize(
    "rule", [AsynchronousSGD(), *(pytest.param(r, marks=pytest.mark.slow) for r in (EASGD(tau=2), *MORE_FREE))], ids=str
)
def test_without_a_server_the_others_go_on(monkeypatch: pytest.MonkeyPatch, rule: FreeRule, lost: int) -> None:
    """Of two servers, the first or the second one; or the rank that is none."""
    results, (departure,) = train_and_lose(monkeypatch, f"kill:{lost}@3", 3, replace(MODEL, rule=rule), servers=2)
    assert results.pop(lost)[0] is None
    assert (departure.ranks, departure.learners, departure.lost[0].rank.number) == (2, 2, lost)
    assert same_weights(results[0][0], results[1][0])
    for _, history in results:
        assert [record.epoch for record in history.records] == [1, 2, 3]
        assert history.records[-1].loss < math.log(3)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [AsynchronousSGD(), SSP(bound=1)], ids=str)
def test_of_a_lost_servers_part_the_newest_copy_is_left(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    kept, restored, events = dict[int, tuple[int, int, Any, Any]](), list[tuple[Any, Any]](), Departures()
    keep, restore, add = ServedExchange.keep_part, Engine.restore, Reports.add
    processes, lost, unknown = Processes(["host"] * 3), threading.Event(), {9, 11}

    def note(exchange: ServedExchange) -> Copies:
        (replica,) = exchange._participants.replicas
        vectors = np.array(replica.weights), exchange._base.copy()
        kept[exchange._rank] = exchange.merges, exchange._read[1][0], *vectors
        return keep(exchange)

    def note_restored(engine: Engine, snapshot: Snapshot, source: str) -> bool:
        (*_, z), newest = kept[0], max((kept[0], kept[2]), key=lambda each: each[1])
        half = share_of(z.size, 1, 2)
        z[half] = newest[2][half]
        restored.append((snapshot.variables, engine.program.model.export(z)))
        return restore(engine, snapshot, source)

    def arrive(reports: Reports, result: Completed | Failed) -> None:
        add(reports, result)
        unknown.discard(result.task)
        if not unknown and not lost.is_set():
            lost.set()
            processes.lose(1)

    def work(ranks: Ranks, number: int) -> None:
        with contextlib.suppress(*((CrossbowError, GivenUp) if number == 1 else ())):
            train(ranks, replace(MODEL, rule=rule), (events,), replace(SYSTEM, servers=2))

    monkeypatch.setattr(ServedExchange, "keep_part", note)
    monkeypatch.setattr(Engine, "restore", note_restored)
    monkeypatch.setattr(Reports, "add", arrive)
    works = [functools.partial(work, ranks, number) for number, ranks in enumerate(processes.ranks())]
    threading.Thread(target=works.pop(1), daemon=True).start()
    at_once(works)
    assert len(restored) == 2
    for variables, expected in restored:
        for name, value in expected.items():
            np.testing.assert_array_equal(variables[name], value)
    (departure,) = events.found
    assert departure.lost_merges == kept[0][0] - max(kept[0][1], kept[2][1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tasks_per_tick"),
    [
        (replace(MODEL, rule=SMA(), wpc=3), 4),
        (replace(MODEL, rule=SMA(tau=2), wpc=6), 4),
        (replace(MODEL, rule=AsynchronousSGD(), wpc=9), 8),
        (replace(MODEL, rule=Grouping(((0, 2), (1,)))), 2),
        (replace(MODEL, rule=Grouping(3)), 2),
    ],
    ids=str,
)
def test_what_depends_on_the_number_of_learners_is_fitted(
    monkeypatch: pytest.MonkeyPatch, model: ModelConf, tasks_per_tick: int
) -> None:
    engines: list[Engine] = []
    restore = Engine.restore

    def noted(engine: Engine, *args: Any) -> None:
        engines.append(engine)
        restore(engine, *args)

    monkeypatch.setattr(Engine, "restore", noted)
    results, (departure,) = train_and_lose(monkeypatch, "kill:1@3", 3, model)
    assert (departure.ranks, departure.learners) == (2, 2)
    assert [engine.clock.tasks_per_tick for engine in engines] == [tasks_per_tick] * 2
    if isinstance(model.rule, Grouping):
        assert [engine.coordination.rule for engine in engines] == [Grouping(((0,), (1,)))] * 2
    assert same_weights(results[0][0], results[2][0])
    assert results[0][1].records[-1].epoch == 3


def test_losses_are_tried_under_every_rule() -> None:
    tried = {type(rule) for rule in (SMA(), SSGD(), *MORE_BARRIERS, *FREE, *MORE_FREE)}
    assert {*RULES.values()} == tried


@pytest.mark.parametrize(
    "rule",
    [
        AsynchronousSGD(),
        Gossip(),
        *(pytest.param(rule, marks=pytest.mark.slow) for rule in (*MORE_FREE, EASGD())),
    ],
    ids=str,
)
def test_without_a_barrier_ranks_join_at_a_tick(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    results, events = train_and_join(monkeypatch, "join@2,kill:1@5", 2, replace(MODEL, rule=rule))
    assert [(each.tick, each.ranks, each.tasks) for each in events.arrivals] == [(2, 3, 4)]
    assert [(each.tick, each.ranks) for each in events.found] == [(5, 2)]
    assert events.found[0].tasks in (13, 14)
    assert [weights is None for weights, _ in results] == [False, True, False]
    assert same_weights(results[0][0], results[2][0])
    assert results[0][1].records[-1].epoch == 3


SPEC = VariableSpec("weights", (4,), Constant(0))
LAYOUT = ModelLayout({(0, "weights"): Segment("ip.weights", SPEC, PlainStorage((4,)), 0)}, np.dtype(np.float32))
OTHER = BlockedStorage((4,), (4,), (16,), ((0, 2),), elements=48)
OF_ANOTHER_PROCESSOR = ModelLayout({(0, "weights"): Segment("ip.weights", SPEC, OTHER, 0)}, LAYOUT.dtype)


def snapshot_of(tasks: int, weights: float, statistics: float, part: dict[str, Any] | None = None) -> Snapshot:
    variables = {"ip.weights": np.full(4, weights, np.float32), "bn.mean": np.full(2, statistics, np.float32)}
    vectors = {} if part is None else {"z0": np.full(LAYOUT.elements, weights, np.float32)}
    return Snapshot(variables, vectors, {"tasks": tasks, **({} if part is None else {"part": part})})


def combine(*snapshots: Snapshot) -> tuple[Snapshot, int]:
    """What all ranks get from their snapshots. Those without a part have just joined."""
    networked = FakeNetwork(len(snapshots)).ranks()
    works = [
        functools.partial(
            regrouping._newest, ranks, own, LAYOUT if "part" in own.state or ranks.is_first else OF_ANOTHER_PROCESSOR
        )
        for ranks, own in zip(networked, snapshots, strict=True)
    ]
    (first, lacking), *others = at_once(works)
    for other, number in others:
        assert same_weights(other.variables, first.variables)
        assert (other.state, number) == (first.state, lacking)
    return first, lacking


def part_of(tasks: int, share: float, *copies: Copy, merges: int = 0, results: Sequence[int] = ()) -> dict[str, Any]:
    completed = [[number, 0.5, None, 4, 0, None] for number in results]
    kept = Copies(copies, merges, share)._asdict()
    return {"tasks": tasks, "results": completed, **kept, "means": ["bn.mean"]}


def whole(mass: float = 1.0) -> Copy:
    return Copy(0, LAYOUT.elements, mass, 0, WHOLE)


def test_shares_of_the_base_model_make_a_whole() -> None:
    """Masses and learners of those that are left count as all. Rank 0's tasks are done, and what any knows beyond."""
    found, lacking = combine(
        snapshot_of(4, 1.0, 0.5, part_of(5, 0.25, whole(0.25), results=[7])),
        snapshot_of(8, 2.0, 0.25, part_of(6, 0.25, whole(0.5), results=[3, 8])),
        snapshot_of(9, 100.0, 100.0),  # had nothing to do with it
    )
    np.testing.assert_array_equal(found.variables["ip.weights"], [4.0] * 4)  # (1 + 2) / (0.25 + 0.5)
    np.testing.assert_array_equal(found.variables["bn.mean"], [1.5, 1.5])  # (0.5 + 0.25) / (0.25 + 0.25)
    assert found.state["tasks"] == 5
    assert [result[0] for result in found.state["known"]] == [7, 8]
    assert not lacking


def test_the_base_model_of_rank_0_counts_where_it_has_all_of_it() -> None:
    copy = Copy(0, LAYOUT.elements, 1, 7, 7)
    found, lacking = combine(
        snapshot_of(4, 1.5, 0.5, part_of(5, 0.5, whole())),
        snapshot_of(8, 2.0, 0.25, part_of(6, 0.25, copy, results=[8])),
    )
    np.testing.assert_array_equal(found.variables["ip.weights"], [1.5] * 4)
    np.testing.assert_array_equal(found.variables["bn.mean"], [1.0, 1.0])
    assert not lacking


def test_the_newest_whole_base_model_counts_if_rank_0_has_one() -> None:
    found, _ = combine(
        snapshot_of(4, 1.0, 1.0), snapshot_of(9, 2.0, 2.0, part_of(9, 0.5, whole())), snapshot_of(6, 3.0, 3.0)
    )
    np.testing.assert_array_equal(found.variables["ip.weights"], [3.0] * 4)
    assert found.state["tasks"] == 6


def parts_of(tasks: int, own: int | None, merges: int, *newest: tuple[float, int, float]) -> dict[str, Any]:
    """The part of a rank with half of the learners that is one of four servers, or none. newest: mass, merges and
    precedence of its copy of the others' parts, in order."""
    others, copies = iter(newest), list[Copy]()
    for server in range(4):
        mass, known, precedence = (1, merges, WHOLE) if server == own else next(others)
        stop = LAYOUT.elements if server == 3 else server + 1
        copies.append(Copy(server, stop, mass, known, precedence))
    return part_of(tasks, 0.5, *copies, merges=merges)


def test_of_lost_servers_the_newest_copies_count() -> None:
    """Two of four servers are lost. Of the last one, both have copies of the same age."""
    found, lacking = combine(
        snapshot_of(4, 1.0, 0.5, parts_of(5, 0, 12, (1, 10, 10), (1, 7, 7), (1, 9, 9))),
        snapshot_of(4, 6.0, 0.5, parts_of(5, 2, 11, (1, 9, 9), (2, 9, 9), (2, 9, 9))),
    )
    np.testing.assert_array_equal(found.variables["ip.weights"], np.float32([1, 1, 6, 7 / 3]))
    assert lacking == 3  # the 10th, 11th and 12th merge of the last part


def test_where_parts_are_missing_a_whole_base_model_counts() -> None:
    missing = (1, 9, 9), (1, 9, 9), (1, 9, 9)
    whole_one = snapshot_of(3, 2.0, 2.0)
    found, lacking = combine(snapshot_of(4, 1.0, 0.5, parts_of(5, 0, 12, *missing)), whole_one)
    np.testing.assert_array_equal(found.variables["ip.weights"], [2.0] * 4)
    assert (found.state["tasks"], lacking) == (3, 0)


class LosesLater(Monitor):
    """Some time after training has begun, a rank is given up, whatever it does."""

    interval = 0.0

    def __init__(self, processes: Processes, lost: int, seconds: float) -> None:
        self._timer = threading.Timer(seconds, processes.lose, [lost])
        self._begun = False

    def progress(self, progress: Progress) -> None:
        if not self._begun:
            self._begun = True
            self._timer.start()


EVERY = (SMA(), SSGD(), *MORE_BARRIERS, *FREE, *MORE_FREE)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_losses_at_any_moment(number: int) -> None:
    """Training ends on the ranks that are left, with the same weights."""
    generator, model = random.Random(number), replace(MODEL, rule=EVERY[number % len(EVERY)])
    system = replace(SYSTEM, servers=number % 3 + 1 if isinstance(model.rule, FreeRule) else 1)
    processes, lost = Processes(["host"] * 3), generator.randrange(3)
    loses = LosesLater(processes, lost, generator.uniform(0, 0.15))

    def of(ranks: Ranks) -> Callable[[], tuple[Any, History]]:
        def work() -> tuple[Any, History]:
            with contextlib.suppress(*((CrossbowError, GivenUp) if ranks.rank == lost else ())):
                return train(ranks, model, (loses,), system)
            return None, History()

        return work

    all_ranks = processes.ranks()
    threading.Thread(target=of(all_ranks.pop(lost)), daemon=True).start()  # whatever becomes of it
    left = at_once([of(ranks) for ranks in all_ranks])
    for weights, history in left:
        assert same_weights(weights, left[0][0])
        assert history.records[-1].epoch == 3
        assert [record.tasks for record in history.records] == [record.tasks for record in left[0][1].records]


def test_without_a_way_to_rebuild_training_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes("ab")
    first, second = processes.ranks()

    def lose() -> None:
        new_engine(MODEL, second).close()
        processes.lose(1)

    def alone() -> None:
        engine = new_engine(MODEL, first)
        with pytest.raises(ViewChangedError):
            TrainingRun(engine, MODEL, Limits(count=1), (), test=False, ranks=first).run()
        engine.close()

    at_once([alone, lose])


def test_learners_have_time_to_end_their_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def check_usable() -> None:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise CrossbowError("busy")

    engine: Any = SimpleNamespace(check_usable=check_usable)
    assert regrouping._settled(engine) is engine
    assert calls == 4
    calls = 0
    monkeypatch.setattr(regrouping, "SECONDS_TO_SETTLE", 0.0)
    with pytest.raises(CrossbowError, match="busy"):
        regrouping._settled(engine)


@pytest.mark.parametrize(
    ("calls", "same"), [((7, 7, 7), True), ((7, 9), False), ((7, 7, 9), False), ((1, 2, 3), False)]
)
def test_ranks_go_on_with_the_same_training_call(calls: tuple[int, ...], same: bool) -> None:
    def gather(own: int, *, any_call: bool) -> list[int]:
        assert own == calls[0]
        assert any_call  # otherwise ranks in different calls would not hear each other
        return list(calls)

    ranks: Any = SimpleNamespace(gather=gather, call_number=calls[0])
    with contextlib.nullcontext() if same else pytest.raises(CrossbowError, match="between two training calls"):
        regrouping._check_same_call(ranks)
