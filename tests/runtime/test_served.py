"""Rules with a base model but without a barrier, across ranks: as the simulator, and what they promise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import ConfigurationError, Dataset, ModelConf, SolverConf, SystemConf
from crossbow.cluster.ranks import Ranks
from crossbow.data.order import TrainingOrder
from crossbow.runtime.changing_engine import new_engine
from crossbow.runtime.copies import WHOLE, Copy
from crossbow.runtime.engine import Engine
from crossbow.runtime.limits import Limits
from crossbow.runtime.messages import Kind, Messages, Note
from crossbow.runtime.run import TrainingRun
from crossbow.runtime.scheduler import TICKS_BEHIND, Scheduler
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
    ModelAveraging,
    PartiallySynchronous,
    Rule,
    RuleSequence,
    TwoLevel,
    WeedOut,
    simulate,
)
from crossbow.synch.progress import ExchangeState
from crossbow.types import TrainingUnit
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.combinations import in_turn, one_in
from tests.runtime.test_across_ranks import MODEL, SYSTEM, losses, train, train_on
from tests.runtime.test_free import EXAMPLES, SEED, START, linear, rows, targets
from tests.support import same_weights, until

RULES: list[FreeRule] = [
    Default(),
    Default(tau=2),
    AsynchronousSGD(),
    AsynchronousSGD(weight="1/staleness", tau=3),
    AsynchronousSGD(weight=0.5, sends="gradient"),
    SSP(bound=1),
    WeedOut(window=3),
    EASGD(alpha=0.3, alpha_steps=((6, 0.1), (18, 0.6))),
    EASGD(tau=3),
    Grouping(1),
    Grouping(2),
]
SOLVER = SolverConf(learning_rate=0.05, momentum=0.5, weight_decay=0.1)
CALM = SolverConf(learning_rate=0.02)
EXACT = SystemConf(learners_per_device=1, precision="float64", seed=SEED, kernels="reference")


WIDE = np.random.default_rng(2).standard_normal((EXAMPLES, 50))
"""Examples for a model that three servers divide in parts of 16, 16 and 32 elements, of which 18 are used."""


def example(learner: int, number: int, learners: int, x: Any = rows) -> tuple[Any, Any]:
    """That of a learner's task with this number: task n of k learners belongs to learner n mod k."""
    index = np.empty(1, np.intp)
    TrainingOrder(EXAMPLES, 1, SEED).indices(number * learners + learner, index)
    return x[index[0]], targets[index[0]]


def simulated(
    rule: Rule, learners: int, events: Sequence[int], solver: SolverConf, tasks: int, examples: Any = rows
) -> Any:
    """The trajectory in which every learner has its own part of the tasks."""
    done = [0] * learners

    def gradient(weights: Any, learner: int, task: int) -> Any:
        x, y = example(learner, done[learner], learners, examples)
        done[learner] += 1
        return (weights @ x - y) * x

    start = [START] * examples.shape[1]
    return simulate(
        rule, initial=start, gradient=gradient, learners=learners, events=events, tasks=tasks, solver=solver
    )


class InOrder:
    """Lets contributions reach rank 0's exchange in one order only. Those that come too early are kept, so that the
    session's thread can go on."""

    def __init__(self, events: Sequence[int]) -> None:
        self.events, self.place = list(events), 0
        self.lock, self.early = threading.RLock(), dict[int, Any]()

    def through(self, contribute: Callable[..., list[int]]) -> Callable[..., list[int]]:
        def ordered(server: Any, learner: int, pace: Any) -> list[int]:
            going: list[int] = []
            with self.lock:
                self.early[learner] = pace
                while self.place < len(self.events) and self.events[self.place] in self.early:
                    following = self.events[self.place]
                    self.place += 1
                    going += contribute(server, following, self.early.pop(following))
            return going

        return ordered


def part_sizes(engine: Engine) -> tuple[int, ...]:
    """The elements of z and of each mirror that a rank has."""
    server = engine.coordination.exchange.server  # type: ignore[attr-defined]
    mirrors = (vector.size for mirror in engine.parts.mirrors for vector in (mirror.gradient,))
    return () if server is None else (server.part.stop - server.part.start, *mirrors)


def trained(
    rule: Rule,
    events: Sequence[int],
    solver: SolverConf,
    tasks: int,
    *,
    servers: int = 1,
    ranks: int = 2,
    examples: Any = rows,
    system: SystemConf = EXACT,
    bias: bool = False,
    **options: Any,
) -> list[Any]:
    """z of ranks with a learner each after contributions in this order."""
    order = InOrder(events)
    model = ModelConf(rule=rule, batch_size=1, **options)
    system = replace(system, servers=servers)

    def on(ranks: Ranks) -> Callable[[], Any]:
        def run() -> Any:
            flow, data = linear(bias=bias), Dataset((examples.astype(system.dtype), targets.astype(system.dtype)))
            engine = new_engine(flow.graph, flow.graph, data, model, solver, system, ranks=ranks)
            assert isinstance(engine, Engine)
            if ranks.is_first:
                exchange: Any = engine.coordination.exchange  # type: ignore[attr-defined]
                exchange._contribute = order.through(exchange._contribute)
            try:
                limits = Limits(count=tasks, unit=TrainingUnit.TASKS)
                TrainingRun(engine, model, limits, (), test=False, ranks=ranks).run()
                return np.concatenate([value.ravel() for value in engine.weights.values()])
            finally:
                engine.close()

        return run

    return at_once([on(each) for each in FakeNetwork(ranks).ranks()])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_as_in_the_simulator_in_turn(rule: Rule) -> None:
    tasks = 24
    made = simulated(rule, 2, [0, 1] * tasks, SOLVER, tasks)
    contributions = [0, 1] * (tasks // 2 // rule.tau)
    for z in trained(rule, contributions, SOLVER, tasks):
        np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [AsynchronousSGD(weight="1/staleness"), AsynchronousSGD(sends="gradient"), EASGD(), WeedOut(), SSP(bound=3)],
    ids=str,
)
def test_as_in_the_simulator_in_another_order(rule: Rule) -> None:
    """A learner may be two contributions ahead of the other."""
    draws = np.random.default_rng(5)
    events = [int(learner) for _ in range(6) for learner in draws.permutation([0, 0, 1, 1])]
    made = simulated(rule, 2, events, SOLVER, len(events) + 2)  # on one machine, any free learner takes the last tasks
    assert made.events.tolist() == events
    for z in trained(rule, events, SOLVER, len(events)):
        np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_partially_synchronous_learners_drift_and_wait_as_in_the_simulator(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """All tasks are submitted at once, so no learner is without one before the end."""
    monkeypatch.setattr("crossbow.runtime.flow.LEAST_AHEAD", 20)
    monkeypatch.setattr("crossbow.runtime.scheduler.TICKS_BEHIND", 20)
    events = {1: [0, 1, 1, 0], 2: [0, 0, 1, 1], 3: [0, 0, 1, 1, 1, 0]}[most] * 4
    made = simulated(PartiallySynchronous(most), 2, events, SOLVER, len(events) + 2)
    assert made.events.tolist() == events
    for z in trained(PartiallySynchronous(most), events, SOLVER, len(events)):
        np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.slow
@one_in(6)
@pytest.mark.parametrize(("most", "servers"), [(1, 1), (2, 1), (5, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_no_learner_waits_for_one_without_a_task(
    monkeypatch: pytest.MonkeyPatch, most: int, slow: int, servers: int
) -> None:
    """With learners that are slow at random, one more than the others, and several stretches of training."""
    draws = np.random.default_rng(most)
    arrive = Server.arrive

    def late(server: Any, learner: int, pace: Any) -> list[int]:
        time.sleep(float(draws.exponential(0.004 if learner == slow else 0.001)))
        return arrive(server, learner, pace)

    monkeypatch.setattr(Server, "arrive", late)
    model, system = replace(MODEL, rule=PartiallySynchronous(most)), replace(SYSTEM, servers=servers)
    first, second = train_on([1, 2], model, system, solver=CALM, limits=Limits(count=4))
    assert same_weights(first.weights, second.weights)
    assert losses(first) == losses(second)


def same_bits(rule: Rule, events: Sequence[int], solver: SolverConf, tasks: int, **options: Any) -> Any:
    """z of three ranks, which is the same with one, two and three servers."""
    first, *others = (
        z
        for servers in (1, 2, 3)
        for z in trained(rule, events, solver, tasks, servers=servers, ranks=3, examples=WIDE, **options)
    )
    for z in others:
        np.testing.assert_array_equal(z, first)
    return first


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize("rule", [*RULES, PartiallySynchronous(2)], ids=str)
def test_several_servers_have_the_bits_of_one(rule: Rule) -> None:
    tasks = 18
    made = simulated(rule, 3, [0, 1, 2] * tasks, SOLVER, tasks, WIDE)
    z = same_bits(rule, [0, 1, 2] * (tasks // 3 // rule.tau), SOLVER, tasks)
    np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "solver", "options"),
    [
        (AsynchronousSGD(), SOLVER, {}),
        (AsynchronousSGD(), SOLVER, {"skip": 0.5}),
        (AsynchronousSGD(sends="gradient"), SolverConf(method="adam", learning_rate=0.002), {}),
        (EASGD(tau=2), SOLVER, {"bias": True, "local_variables": ("*bias",)}),
        (Grouping(2), SOLVER, {}),
    ],
    ids=["async", "skip", "adam", "local variables", "grouping"],
)
def test_several_servers_have_the_bits_of_one_on_the_fast_kernels(
    rule: Rule, solver: SolverConf, options: dict[str, Any]
) -> None:
    fast = replace(SYSTEM, learners_per_device=1)
    same_bits(rule, [0, 1, 2] * (18 // 3 // rule.tau), solver, 18, system=fast, **options)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [AsynchronousSGD(sends="gradient"), EASGD(), WeedOut(), SSP(bound=3)], ids=str)
def test_several_servers_keep_the_order_of_rank_0(rule: Rule) -> None:
    draws = np.random.default_rng(7)
    events = [int(learner) for _ in range(4) for learner in draws.permutation([0, 0, 1, 1, 2, 2])]
    made = simulated(rule, 3, events, SOLVER, len(events) + 3, WIDE)
    assert made.events.tolist() == events
    np.testing.assert_allclose(same_bits(rule, events, SOLVER, len(events)), made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_all_servers_let_no_learner_wait_for_one_without_a_task(servers: int) -> None:
    flow, data = linear(), Dataset((WIDE, targets))
    model, system = ModelConf(rule=PartiallySynchronous(), batch_size=1), replace(EXACT, servers=servers)

    def engine(ranks: Ranks) -> Callable[[], Any]:
        return lambda: new_engine(flow.graph, flow.graph, data, model, SOLVER, system, ranks=ranks)

    engines = at_once([engine(ranks) for ranks in FakeNetwork(3).ranks()])
    exchanges = [each.coordination.exchange for each in engines]
    free = [each.coordination._ready for each in engines]
    try:
        for exchange in exchanges:
            exchange.free.clear()
            exchange.begin_session()
        for exchange in exchanges[:2]:  # whose learners wait for the third one
            exchange.finished(0, Pace(0.1, 0.0))
        until(lambda: exchanges[0].merges == 2)
        assert not any(free)
        exchanges[2].rest(0)
        until(lambda: all(free[:2]))
        at_once([exchange.settle for exchange in exchanges])
        assert [exchange.merges for exchange in exchanges] == [2, 2, 2]
    finally:
        for each in engines:
            each.close()


STEPS = SolverConf(learning_rate=0.1, policy="step", gamma=0.5, step_size=8, momentum=0.5)
"""In 24 tasks the learners restart twice."""


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "rule", [AsynchronousSGD(), AsynchronousSGD(weight="1/staleness"), EASGD(), SSP(), Grouping(1)], ids=str
)
def test_restarts_where_the_learning_rate_steps_down(rule: Rule, servers: int) -> None:
    """Of two servers, the first has an empty part."""
    made = simulated(rule, 2, [0, 1] * 12, STEPS, 24)
    for z in trained(rule, [0, 1] * 12, STEPS, 24, servers=servers):
        np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


BY_MERGES = SolverConf(learning_rate=0.02, policy="multistep", step_values=(20, 60), learning_rate_step_unit="merges")


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize(
    ("rule", "tasks_of_merge"),
    [
        (AsynchronousSGD(), 1),
        (EASGD(tau=3), 3),
        (Grouping(1), 3),
        (Gossip(), 1),
        (RuleSequence(((AsynchronousSGD(), 10), (Gossip(), 10))), 1),
    ],
    ids=str,
)
def test_all_ranks_count_merges_alike(monkeypatch: pytest.MonkeyPatch, rule: Any, tasks_of_merge: int) -> None:
    """So all have the same learning rate at every tick, and restart at the same ticks. Merges are counted late."""
    times: dict[threading.Thread, list[tuple[int, int]]] = {}
    started: list[tuple[threading.Thread, int]] = []
    run_tick, start_again = Scheduler.run_tick, Scheduler._start_again

    def watched(scheduler: Scheduler, *args: Any) -> bool:
        times.setdefault(threading.current_thread(), []).append((scheduler.position.tasks, scheduler.time))
        return run_tick(scheduler, *args)

    def noted(scheduler: Scheduler) -> None:
        started.append((threading.current_thread(), scheduler.position.tasks))
        start_again(scheduler)

    monkeypatch.setattr(Scheduler, "run_tick", watched)
    monkeypatch.setattr(Scheduler, "_start_again", noted)
    first, second = train_on([1, 2], replace(MODEL, rule=rule), solver=BY_MERGES, limits=Limits(count=15))
    assert same_weights(first.weights, second.weights)
    assert losses(first) == losses(second)
    counted, again = times.values()
    assert counted == again
    restarts = [[tasks for thread, tasks in started if thread is each] for each in times]
    assert restarts[0] == restarts[1]
    assert len(restarts[0]) >= 2  # a phase of a sequence begins with one, too
    lag = (TICKS_BEHIND + 3) * 3 * tasks_of_merge
    for tasks, merges in counted:
        assert (tasks - lag) / tasks_of_merge <= merges <= tasks / tasks_of_merge
    assert counted[-1][1] > counted[-1][0] // tasks_of_merge // 2


@pytest.mark.slow
@in_turn
@pytest.mark.parametrize(
    "rule", [*RULES, Hogwild(), PartiallySynchronous(), PartiallySynchronous(max_advance=2, tau=2)], ids=str
)
@pytest.mark.parametrize("servers", [1, 2])
def test_all_ranks_have_the_same_model_and_count_alike(rule: Rule, servers: int) -> None:
    """With two learners on one of the ranks, batch normalisation, and tests in between."""
    system = replace(SYSTEM, servers=servers)
    first, second = train_on([1, 2], replace(MODEL, rule=rule), system, solver=CALM, limits=Limits(count=4))
    assert same_weights(first.weights, second.weights)
    assert losses(first) == losses(second)
    records = first.history.records
    assert [each.tasks for each in records] == [each.tasks for each in second.history.records]
    assert records[-1].loss < records[0].loss
    assert [each.staleness for each in records] == [each.staleness for each in second.history.records]


def on_ranks(
    learners: list[int],
    rule: Rule,
    tasks: int,
    look: Callable[[Engine], Any],
    servers: int = 1,
    examples: Any = rows,
    **options: Any,
) -> list[Any]:
    """What `look` finds in each rank's engine after training."""

    def on(ranks: Ranks, own: int) -> Callable[[], Any]:
        def run() -> Any:
            flow = linear(bias=True)
            model = ModelConf(rule=rule, batch_size=1, **options)
            system = replace(SYSTEM, learners_per_device=own, servers=servers)
            data = Dataset((examples.astype(np.float32), targets.astype(np.float32)))
            engine = new_engine(flow.graph, flow.graph, data, model, CALM, system, ranks=ranks)
            assert isinstance(engine, Engine)
            try:
                limits = Limits(count=tasks, unit=TrainingUnit.TASKS)
                TrainingRun(engine, model, limits, (), test=False, ranks=ranks).run()
                return look(engine)
            finally:
                engine.close()

        return run

    return at_once([on(*each) for each in zip(FakeNetwork(len(learners)).ranks(), learners, strict=True)])


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("rule", "tasks", "merges"), [(AsynchronousSGD(), 30, 30), (EASGD(tau=2), 36, 18)], ids=str)
def test_every_contribution_is_merged_once(rule: Rule, tasks: int, merges: int, servers: int) -> None:
    found = on_ranks([2, 1], rule, tasks, lambda engine: (engine.merges, engine.coordination.arrivals()), servers)
    assert [number for number, _ in found] == [merges] * 2
    assert [arrivals[:2] for _, arrivals in found] == [(merges, 0)] * 2
    assert found[0] == found[1]


@pytest.mark.slow
def test_no_session_begins_before_all_have_ended_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server 1 hears late that server 2 has ended, when server 0 has. The model has no statistics."""
    send, settle, settled = Messages.send, ServedExchange.settle, dict[int, list[Any]]()

    def late(messages: Messages, rank: int, note: Note, vector: Any = None) -> None:
        if note.kind == Kind.END and rank == 1:
            time.sleep(0.05)
        send(messages, rank, note, vector)

    def noted(exchange: ServedExchange) -> None:
        settle(exchange)
        settled.setdefault(exchange._rank, []).append(exchange._base.copy())

    monkeypatch.setattr(Messages, "send", late)
    monkeypatch.setattr(ServedExchange, "settle", noted)
    tasks = 3 * EXAMPLES  # an epoch is a session
    assert on_ranks([1, 1, 1], AsynchronousSGD(), tasks, lambda engine: engine.merges, 3, WIDE) == [tasks] * 3
    assert [len(each) for each in settled.values()] == [3, 3, 3]
    for rank in (1, 2):
        np.testing.assert_array_equal(settled[rank], settled[0])


def test_ssp_bounds_how_far_learners_are_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner may begin a task if it is at most one ahead, so its clock is at most two ahead when it has ended it."""
    drifts: list[int] = []
    arrive = ExchangeState.arrive

    def watched(state: ExchangeState, learner: int) -> Any:
        merge = arrive(state, learner)
        drifts.append(max(state.clocks) - min(state.clocks))
        return merge

    monkeypatch.setattr(ExchangeState, "arrive", watched)
    on_ranks([1, 2], SSP(bound=1), 60, lambda engine: None)
    assert len(drifts) == 60
    assert max(drifts) <= 2


@pytest.mark.parametrize("servers", [1, 2])
def test_local_variables_are_the_means_of_all_learners(servers: int) -> None:
    def look(engine: Engine) -> Any:
        layout = engine.program.model
        own = [layout.export(member.replica.weights) for member in engine.members]
        return engine.weights, own

    (first, own), (second, others) = on_ranks([1, 2], EASGD(), 30, look, servers, local_variables=("*.bias",))
    assert same_weights(first, second)
    (name,) = [name for name in first if name.endswith("bias")]
    biases = [each[name] for each in (*own, *others)]
    assert len(biases) == 3
    assert not np.allclose(biases[0], biases[1])
    np.testing.assert_allclose(first[name], np.mean(biases, axis=0), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "solver"),
    [
        (replace(MODEL, rule=AsynchronousSGD(), skip=0.4), CALM),
        (replace(MODEL, rule=AsynchronousSGD(sends="gradient")), SolverConf(method="adam", learning_rate=0.002)),
        (replace(MODEL, rule=Hogwild()), SolverConf(method="adam", learning_rate=0.002)),
        (replace(MODEL, rule=SSP(bound=1)), replace(CALM, clip_gradient_norm=0.5)),
        (replace(MODEL, rule=EASGD()), replace(CALM, clip_gradient_norm=0.5)),
        (replace(MODEL, rule=RuleSequence(((SMA(), 4), (AsynchronousSGD(), 5), (EASGD(), 3)))), CALM),
    ],
    ids=["skip", "adam", "hogwild with adam", "clipped", "each clips", "a sequence"],
)
def test_with_other_options(model: ModelConf, solver: SolverConf) -> None:
    clips = solver.clip_gradient_norm is not None and not isinstance(model.rule, EASGD)
    system = replace(SYSTEM, servers=1 if clips else 2)
    first, second = train_on([1, 2], model, system, solver=solver, limits=Limits(count=3))
    assert same_weights(first.weights, second.weights)
    assert losses(first) == losses(second)
    assert first.history.records[-1].loss < first.history.records[0].loss


def test_each_server_has_its_part_only() -> None:
    """Of vectors of 80 and 32 elements, in units of 16. In the first case, the last rank is no server."""
    assert on_ranks([2, 1, 1], AsynchronousSGD(), 8, part_sizes, 2, examples=WIDE) == [
        (32, 32, 32),
        (48, 48, 48, 48),
        (),
    ]
    assert on_ranks([1, 1, 1], AsynchronousSGD(), 9, part_sizes, 5) == [(0, 0, 0), (16, 16, 16), (16, 16, 16)]


@pytest.mark.parametrize(
    ("model", "solver", "servers", "expected"),
    [
        (replace(MODEL, rule=EASGD(), slack=3), CALM, 1, "slack must be None across ranks"),
        (
            replace(MODEL, rule=SSP()),
            replace(CALM, clip_gradient_norm=0.5),
            2,
            "servers must be 1 if gradients that are sent are clipped by their norm as a whole",
        ),
        (MODEL, CALM, 2, r"servers must be 1 under a rule .* Received: servers=2, rule=SMA"),
        (replace(MODEL, rule=Gossip()), CALM, 3, r"servers must be 1 under a rule .* Received: servers=3, rule=Gossip"),
        (replace(MODEL, rule=TwoLevel(SMA(), ModelAveraging())), CALM, 2, "servers must be 1 under a rule"),
        (replace(MODEL, rule=RuleSequence(((SMA(), 4), (Gossip(), 5)))), CALM, 2, "servers must be 1 under a rule"),
    ],
)
def test_what_does_not_work_across_ranks_is_refused(
    model: ModelConf, solver: SolverConf, servers: int, expected: str
) -> None:
    def on(ranks: Ranks) -> Callable[[], None]:
        def run() -> None:
            with pytest.raises(ConfigurationError, match=expected):
                train(ranks, model, replace(SYSTEM, learners_per_device=1, servers=servers), solver=solver)

        return run

    at_once([on(ranks) for ranks in FakeNetwork(2).ranks()])


def test_a_tick_of_other_than_k_tasks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="wpc must be a multiple of the number of learners, 3, across ranks"):
        train_on([1, 2], replace(MODEL, rule=EASGD(), wpc=4))


@pytest.mark.parametrize(
    ("rule", "server", "merges", "weights", "expected"),
    [
        # Its own part is whole, and so is that of a server whose session has ended.
        (EASGD(), 0, [5, 5], None, Copy(0, 2, 1.0, 9, WHOLE)),
        (EASGD(), 1, [5, 5], None, Copy(2, 4, 1.0, 6, WHOLE)),
        # Learners that continue with z have it: those who have read it last, and their own steps.
        (AsynchronousSGD(), 2, [5, 7], [30], Copy(4, 6, 1, 7, 7)),
        (AsynchronousSGD(), 2, [7, 7], [20, 30], Copy(4, 6, 2, 7, 7)),
        # Others have part of it, whenever they have read it.
        (EASGD(), 2, [5, 7], [20, 30], Copy(4, 6, 2, 7, 0)),
        # Nothing newer than what the base model has.
        (AsynchronousSGD(), 2, [4, 4], None, Copy(4, 6, 1.0, 4, 4)),
        (AsynchronousSGD(), 2, [3, 2], None, Copy(4, 6, 1.0, 4, 4)),
        (EASGD(), 2, [4, 4], None, Copy(4, 6, 1.0, 4, -1)),
    ],
)
def test_what_is_left_of_a_server_s_part(
    rule: FreeRule, server: int, merges: list[int], weights: list[int] | None, expected: Copy
) -> None:
    """On rank 0, with servers of two elements each; z was last whole after four merges. weights: the learners' whose
    sum is kept."""
    base = np.arange(6.0)
    replicas = [SimpleNamespace(weights=np.arange(6) + first) for first in (20.0, 30.0)]
    exchange: Any = SimpleNamespace(
        _rank=0, _rule=rule, _base=base, _complete={1}, _settled=[4, 6, 4], _read=[merges] * 3, merges=9,
        _participants=SimpleNamespace(replicas=replicas),
    )  # fmt: skip
    part = slice(2 * server, 2 * server + 2)
    assert ServedExchange._copy(exchange, server, part) == expected
    kept = np.arange(6.0)
    if weights is not None:
        kept[part] = sum(np.arange(6)[part] + first for first in weights)
    assert base.tolist() == kept.tolist()
