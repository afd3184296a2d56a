"""The number of learners is found for all ranks: rank 0 measures, and all change it at one tick."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from crossbow import SMA, SSGD, ConfigurationError, Dataflow, Dataset, History, ModelConf, Phase, SystemConf
from crossbow.cluster.admission import Admission, Joining
from crossbow.cluster.fault import Fault
from crossbow.cluster.members import GivenUp
from crossbow.cluster.ranks import Ranks
from crossbow.data.rank_shares import ShareOrder, share_of_rank
from crossbow.ops import BatchNorm, InnerProduct, ReLU
from crossbow.runtime import building, tuner
from crossbow.runtime.changing_engine import ChangingEngine, new_engine
from crossbow.runtime.engine import Engine
from crossbow.runtime.limits import Limits
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.new_view import Departure
from crossbow.runtime.results import AnyDecision
from crossbow.runtime.run import Renewal, TrainingRun
from crossbow.runtime.scheduler import Callbacks
from crossbow.runtime.task import Completed
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.runtime.tuner import Decision
from crossbow.runtime.tuning import Tuning
from crossbow.synch import EASGD, AsynchronousSGD, DiLoCo, Gossip, ModelAveraging, Rule, TwoLevel
from crossbow.types import CrossbowError, TrainingUnit
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.cluster.ray.processes import Processes
from tests.combinations import one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.runtime.test_across_ranks import DATA, MODEL, SOLVER, SYSTEM
from tests.runtime.test_regrouping import Departures, Killed, LosesLater
from tests.runtime.test_tuning import WINDOW, Scripted
from tests.support import same_weights, training, until

AUTO = replace(SYSTEM, devices="cpu:0/2")
"""The system of a rank that begins with one learner."""


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.runtime.device.available_cores", lambda: (0, 0))
    monkeypatch.setattr(tuner, "WINDOW_SECONDS", WINDOW)
    monkeypatch.setattr(tuner, "WATCHED_SECONDS", 1e9)


def engine_of(ranks: Ranks, model: ModelConf, system: SystemConf = AUTO, data: Dataset = DATA) -> TrainingEngine:
    flow = training(InnerProduct(number_of_outputs=8), BatchNorm(), ReLU(), InnerProduct(number_of_outputs=3))
    check = Dataflow(flow.subgraph).set_phase(Phase.CHECK)
    return new_engine(flow.graph, check.graph, data, model, SOLVER, system, ranks=ranks)


def tuning_of(engine: TrainingEngine) -> Tuning:
    assert isinstance(engine, ChangingEngine)
    assert isinstance(engine.course, Tuning)
    return engine.course


@dataclass
class Trained:
    """What one rank has after training."""

    weights: dict[str, Any]
    history: History
    learners: int
    """Number of all learners."""
    script: Scripted
    seen: list[int] = field(default_factory=list)
    """The tasks whose results it got."""


def train_with_script(
    numbers: Sequence[int],
    model: ModelConf,
    system: SystemConf = AUTO,
    tasks: int = 200,
    part: Callable[[Ranks], Dataset] = lambda ranks: DATA,
    devices: Sequence[str] = (),
) -> list[Trained]:
    """Train on two ranks that want these numbers in turn. part: the data set of a rank. devices: of each rank."""
    devices = devices or [str(system.devices[0])] * 2
    of_all = len(",".join(devices).split(","))

    def of(ranks: Ranks) -> Callable[[], Trained]:
        def work() -> Trained:
            own = replace(system, devices=devices[ranks.rank])
            engine, script, seen = engine_of(ranks, model, own, part(ranks)), Scripted(numbers), list[int]()
            tuning_of(engine).tuner = script  # type: ignore[assignment]
            run = TrainingRun(engine, model, Limits(count=tasks, unit=TrainingUnit.TASKS), (), test=False, ranks=ranks)
            train = engine.run

            def watched(until: int, callbacks: Callbacks) -> None:
                def note(result: Completed) -> None:
                    seen.append(result.task)
                    callbacks.on_result(result)

                train(until, replace(callbacks, on_result=note))

            engine.run = watched  # type: ignore[method-assign]
            try:
                while not script.settled or engine.summary().learners != of_all * script.learners:
                    history = run.run()
                    run = TrainingRun(engine, model, run.limits, (), test=False, ranks=ranks)
                return Trained(engine.weights, history, engine.summary().learners, script, seen)
            finally:
                engine.close()

        return work

    return at_once([of(ranks) for ranks in FakeNetwork(2).ranks()])


TWO_LEVELS = TwoLevel(SMA(), DiLoCo(tau=3))


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2), TWO_LEVELS, SSGD(), AsynchronousSGD(), EASGD(), Gossip()], ids=str)
def test_all_ranks_change_at_one_tick(rule: Rule) -> None:
    """Every task is done once, and the speeds are those that rank 0 has measured."""
    first, second = train_with_script([1, 2, 3, 1, 2], replace(MODEL, rule=rule))
    assert first.learners == second.learners == 4
    assert first.script.rates == second.script.rates
    assert len(first.script.rates) >= 4
    assert first.seen == second.seen == list(range(len(first.seen)))
    assert same_weights(first.weights, second.weights)
    assert [each.tasks for each in first.history.records] == [each.tasks for each in second.history.records]


@pytest.mark.slow
@pytest.mark.parametrize("rule", [SSGD(), TWO_LEVELS, EASGD()], ids=str)
def test_each_rank_goes_through_its_part_without_a_gap(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    done: dict[int, dict[int, int]] = {0: {}, 1: {}}
    begin, own = ShareOrder.begin, ShareOrder._own

    def noted_begin(order: ShareOrder, task: int) -> None:
        numbers = done[order._placement.first // order._placement.own]
        for ahead in [each for each in numbers if each >= task]:
            del numbers[ahead]
        begin(order, task)

    def noted(order: ShareOrder, task: int) -> int:
        number = done[order._placement.first // order._placement.own][task] = own(order, task)
        return number

    monkeypatch.setattr(ShareOrder, "begin", noted_begin)
    monkeypatch.setattr(ShareOrder, "_own", noted)
    first, second = train_with_script(
        [1, 2, 3, 1, 2], replace(MODEL, rule=rule), part=lambda ranks: share_of_rank(DATA, "stride", ranks)
    )
    assert first.learners == second.learners == 4
    assert same_weights(first.weights, second.weights)
    for numbers in done.values():
        assert [numbers[task] for task in sorted(numbers) if task < len(first.seen)] == [*range(len(first.seen) // 2)]


def test_a_number_that_one_rank_cannot_have_is_rejected_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assemble = building._assemble

    def small(*given: Any) -> Any:
        *_, setting, _ = given
        if setting.placement.own == 2 and setting.ranks.rank == 1:
            raise ConfigurationError("too little memory")
        return assemble(*given)

    monkeypatch.setattr(building, "_assemble", small)
    for each in train_with_script([1, 2, 3], MODEL):
        assert each.script.refusals == ["rank 1 (host1): too little memory"]
        assert each.learners == 6


def test_a_number_that_the_rule_rejects() -> None:
    for each in train_with_script([1, 2, 1], replace(MODEL, rule=SMA(alpha=0.5))):
        (refusal,) = each.script.refusals
        assert refusal.startswith("SMA: alpha must be < 2/(k + 1)")
        assert each.learners == 2


def test_a_number_that_the_rule_rejects_on_the_rank_with_more_devices() -> None:
    rule = TwoLevel(SMA(alpha=0.5), ModelAveraging(tau=3))
    for each in train_with_script([1, 2, 1], replace(MODEL, rule=rule), devices=["cpu:0/3", "cpu:1/3,cpu:2/3"]):
        (refusal,) = each.script.refusals
        assert refusal.startswith("rank 1 (host1): SMA: alpha must be < 2/(k + 1) = 0.4 with k = 4 learners")
        assert each.learners == 3


@pytest.mark.slow
def test_on_gpus() -> None:
    with fake_cuda(2, threads_tell=True):

        def of(ranks: Ranks) -> Callable[[], tuple[int, dict[str, Any]]]:
            def work() -> tuple[int, dict[str, Any]]:
                system = SystemConf(devices=f"cuda:{ranks.rank}", seed=3)
                engine = engine_of(ranks, MODEL, system)
                tuning_of(engine).tuner = Scripted([4, 3, 5])  # type: ignore[assignment]
                try:
                    while engine.summary().learners != 10:
                        limits = Limits(count=100, unit=TrainingUnit.TASKS)
                        TrainingRun(engine, MODEL, limits, (), test=False, ranks=ranks).run()
                    return engine.summary().learners, engine.weights
                finally:
                    engine.close()

            return work

        (_, first), (_, second) = at_once([of(ranks) for ranks in FakeNetwork(2).ranks()])
        assert same_weights(first, second)


# With the real tuner, and speeds that are made up


class Decisions(Departures):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[AnyDecision] = []
        self.at_departure: list[int] = []

    def decision(self, decision: AnyDecision) -> None:
        self.heard.append(decision)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Images/s with each number of learners on a device."""
    made_up = {1: 100.0, 2: 150.0, 3: 200.0, 4: 180.0}
    monkeypatch.setattr(Tuning, "_tell_tuner", lambda course, _: course.tuner.add(made_up[course.tuner.learners]))
    return made_up


def train(
    ranks: Ranks,
    monitors: Sequence[Monitor],
    count: int,
    model: ModelConf = MODEL,
    engines: list[TrainingEngine] | None = None,
) -> tuple[History, int, dict[str, Any]]:
    """The history, the number of learners, and the weights. Ranks may leave and join. engines: this rank's, in the
    order of their creation, are added here."""
    engines = [] if engines is None else engines
    engines.append(engine_of(ranks, model))

    def rebuild() -> TrainingEngine:
        engines.append(engine_of(ranks, model))
        return engines[-1]

    def lead(run: TrainingRun) -> None:
        run.monitors = monitors

    try:
        limits = Limits(count=count, unit=TrainingUnit.TASKS)
        run = TrainingRun(engines[0], model, limits, monitors if ranks.is_first else (), test=False, ranks=ranks)
        history = run.run(Renewal(rebuild, lead))
        return history, engines[-1].summary().learners, engines[-1].weights
    except Killed:
        return History(), 0, {}
    finally:
        engines[-1].close()


def chosen(history: History) -> list[int]:
    return [decision.chosen for decision in history.decisions if isinstance(decision, Decision)]


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize("rule", [SMA(), AsynchronousSGD(), TWO_LEVELS], ids=str)
def test_all_ranks_have_the_decisions(speeds: dict[int, float], rule: Rule) -> None:
    listener = Decisions()
    network = FakeNetwork(2).ranks()
    found = at_once(
        [lambda ranks=ranks: train(ranks, [listener], 1500, replace(MODEL, rule=rule)) for ranks in network]
    )
    for history, learners, weights in found:
        assert learners == 6
        assert history.decisions == listener.heard
        assert chosen(history) == [2, 3, 3]
        assert same_weights(weights, found[0][2])
    assert str(listener.heard[0]).startswith("2 learners on each of 2 devices: 2 are 1.500 times as fast as 1, with ")


def test_the_number_that_was_found_has_the_bits_of_one_that_is_given() -> None:
    def of(ranks: Ranks, system: SystemConf) -> Callable[[], dict[str, Any]]:
        def work() -> dict[str, Any]:
            engine = engine_of(ranks, MODEL, system)
            try:
                if isinstance(engine, ChangingEngine):
                    engine.course.restore({"learners": 3, "best": 3, "settled": True})
                TrainingRun(engine, MODEL, Limits(count=2), (), test=False, ranks=ranks).run()
                return engine.weights
            finally:
                engine.close()

        return work

    found, given = (
        at_once([of(ranks, replace(AUTO, learners_per_device=wanted)) for ranks in FakeNetwork(2).ranks()])
        for wanted in ("auto", 3)
    )
    assert all(same_weights(each, given[0]) for each in (*found, *given))


@pytest.mark.slow
@pytest.mark.parametrize(("tick", "lost"), [(5, 1), (5, 0), (150, 2), (150, 0)])
def test_when_a_rank_is_lost_the_number_stays(
    speeds: dict[int, float], monkeypatch: pytest.MonkeyPatch, tick: int, lost: int
) -> None:
    """If it was still searched for, the search goes on."""
    monkeypatch.setattr(tuner, "WINDOW_SECONDS", 0.0)  # of one tick each: the number is found before tick 150
    monkeypatch.setenv("CROSSBOW_FAULT", f"kill:{lost}@{tick}")
    processes, events = Processes(["host"] * 3), Decisions()

    def strike(fault: Fault) -> None:
        processes.lose(processes.roster.alive[fault.rank])
        raise Killed

    monkeypatch.setattr(Fault, "strike", strike)
    found = at_once([lambda ranks=ranks: train(ranks, [events], 1800) for ranks in processes.ranks()])
    (departure,) = events.found
    assert departure.learners == (6 if tick == 150 else 2)
    del found[lost]
    for history, learners, weights in found:
        assert learners == 6
        assert chosen(history)[-3:] == [2, 3, 3]
        assert same_weights(weights, found[0][2])


@pytest.mark.slow
def test_a_rank_that_joins_gets_the_number(speeds: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "WINDOW_SECONDS", 0.0)  # of one tick each: the number is found before tick 150
    monkeypatch.setenv("CROSSBOW_FAULT", "join@150")
    processes, events, admission = Processes(["host"]), Decisions(), Admission()
    (first,) = processes.ranks(admission)
    joiner: list[Joining] = []

    def join() -> tuple[History, int, dict[str, Any]]:
        ranks, joining = processes.new("new", admission)
        joiner.append(joining)
        return train(ranks, (), 1000)

    def launch() -> tuple[History, int, dict[str, Any]]:
        until(lambda: joiner)
        arrived = joiner[0].await_arrival()
        assert arrived is not None
        assert admission.request(arrived[0], trains=arrived[1]) is None
        processes.join(1)
        return History(), 0, {}

    found = at_once([lambda: train(first, [events], 1000), join, launch])[:-1]
    (arrival,) = events.arrivals
    assert arrival.learners == 6
    for history, learners, weights in found:
        assert learners == 6
        assert chosen(history) == [2, 3, 3]
        assert same_weights(weights, found[0][2])


class EndsAfterLoss(LosesLater):
    """Ends training when a rank has left, the search is over, and training has gone on for some tasks."""

    def __init__(self, processes: Processes, lost: int, seconds: float) -> None:
        super().__init__(processes, lost, seconds)
        self.engines: dict[int, list[TrainingEngine]] = {rank: [] for rank in range(3) if rank != lost}
        """Of each rank that is left; see `train`."""
        self._left = False
        self._last: int | None = None

    def left(self, departure: Departure) -> None:
        self._left = True

    def progress(self, progress: Progress) -> None:
        super().progress(progress)
        if self._left and all(tuning_of(of_rank[-1]).tuner.settled for of_rank in self.engines.values()):
            self._last = self._last or progress.tasks + 50
            if progress.tasks >= self._last:
                self.end_training("the test has seen enough")


@pytest.mark.slow
@pytest.mark.parametrize("rule", [SMA(), AsynchronousSGD(), TWO_LEVELS], ids=str)
@pytest.mark.parametrize("number", range(15))
def test_losses_at_any_moment(speeds: dict[int, float], number: int, rule: Rule) -> None:
    """Also while engines are created, and take each other's place."""
    generator, model = random.Random(number), replace(MODEL, rule=rule)
    processes, lost = Processes(["host"] * 3), generator.randrange(3)
    loses = EndsAfterLoss(processes, lost, generator.uniform(0, 0.5))

    def of(ranks: Ranks) -> Callable[[], tuple[History, int, dict[str, Any]]]:
        engines = loses.engines.get(ranks.rank)

        def work() -> tuple[History, int, dict[str, Any]]:
            with contextlib.suppress(*((CrossbowError, GivenUp) if ranks.rank == lost else ())):
                return train(ranks, (loses,), 3000, model, engines)
            return History(), 0, {}

        return work

    all_ranks = processes.ranks()
    threading.Thread(target=of(all_ranks.pop(lost)), daemon=True).start()  # whatever becomes of it
    left = at_once([of(ranks) for ranks in all_ranks])
    for history, learners, weights in left:
        assert learners == 6
        assert chosen(history)[-1] == 3
        assert same_weights(weights, left[0][2])


# Without a search


@pytest.mark.parametrize(
    "systems",
    [(AUTO, replace(AUTO, learners_per_device=1)), (AUTO, replace(AUTO, devices="cpu"))],
    ids=["a given number", "more cores"],
)
def test_ranks_that_do_not_begin_alike_keep_their_numbers(systems: Sequence[SystemConf]) -> None:
    def of(ranks: Ranks, system: SystemConf) -> Callable[[], bool]:
        def work() -> bool:
            engine = engine_of(ranks, MODEL, system)
            engine.close()
            return isinstance(engine, Engine)

        return work

    assert at_once([of(*pair) for pair in zip(FakeNetwork(2).ranks(), systems, strict=True)]) == [True, True]
