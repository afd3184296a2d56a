"""Rules without a barrier with real learners: as the simulator, in whatever order; and what they promise."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import (
    Constant,
    Dataflow,
    Dataset,
    ExecutionContext,
    NonFiniteLossError,
    Phase,
    SolverConf,
    SubGraph,
    TaskError,
    TrainingUnit,
)
from crossbow.data.order import TrainingOrder
from crossbow.ops import BatchNorm, Conv, EuclideanLoss, InnerProduct, ReLU
from crossbow.runtime.exchange import BaseExchange, PeerExchange
from crossbow.synch import (
    EASGD,
    SMA,
    SSGD,
    SSP,
    AsynchronousSGD,
    Default,
    DiLoCo,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PartiallySynchronous,
    PolyakRuppert,
    Rule,
    Trajectory,
    WeedOut,
    simulate,
)
from crossbow.testing import FakeCollective
from crossbow.types import ConfigurationError
from tests.combinations import in_turn, one_in, pairwise
from tests.support import (
    FAST,
    SECONDS,
    Probe,
    Trap,
    blobs,
    chain,
    context,
    dawdle,
    perceptron,
    pictures,
    raising,
    training,
    within,
)

TASKS = TrainingUnit.TASKS
RULES: list[Rule] = [
    Default(),
    Default(tau=2),
    Hogwild(),
    AsynchronousSGD(),
    AsynchronousSGD(weight="1/staleness", tau=3),
    AsynchronousSGD(weight=0.5, sends="gradient"),
    SSP(bound=1),
    SSP(bound=4, weight="1/staleness"),
    PartiallySynchronous(max_advance=2),
    PartiallySynchronous(max_advance=3, tau=2),
    WeedOut(window=3),
    EASGD(alpha=0.3, alpha_steps=((6, 0.1), (18, 0.6))),
    EASGD(tau=3),
    Gossip(probability=0.5),
    Gossip(probability=1, tau=2),
    Grouping(),
    Grouping(2),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=str)
SOLVERS = [
    SolverConf(learning_rate=0.1),
    SolverConf(learning_rate=0.05, momentum=0.5, weight_decay=0.1),
    SolverConf(learning_rate=0.05, momentum=0.5, momentum_method="nesterov", weight_decay=0.1, regularisation="l1"),
    SolverConf(learning_rate=0.5, clip_gradient_norm=0.5),
]
EXAMPLES, FEATURES = 64, 3
rows = np.random.default_rng(0).standard_normal((EXAMPLES, FEATURES))
targets = rows @ np.array([1.0, -2.0, 0.5]) + 0.1 * np.random.default_rng(1).standard_normal(EXAMPLES)
START = 0.25
SEED = 5


def linear(*middle: Any, bias: bool = False) -> Dataflow:
    """Least squares: three weights, and perhaps a bias."""
    biases: dict[str, Any] = {"bias_initialiser": Constant(START)} if bias else {"bias": False}
    layer = InnerProduct(number_of_outputs=1, weight_initialiser=Constant(START), **biases)
    return Dataflow(SubGraph(chain(layer, *middle, EuclideanLoss())[0])).set_phase(Phase.TRAIN)


def gradient(weights: Any, learner: int, task: int) -> Any:
    """That of a task's example."""
    index = np.empty(1, np.intp)
    TrainingOrder(EXAMPLES, 1, SEED).indices(task, index)
    x, y = rows[index[0]], targets[index[0]]
    return (weights @ x - y) * x


def expected(rule: Rule, learners: int, events: Sequence[int], tasks: int, solver: SolverConf) -> Trajectory:
    return simulate(
        rule,
        initial=[START] * FEATURES,
        gradient=gradient,
        learners=learners,
        events=events,
        tasks=tasks,
        solver=solver,
        seed=SEED,
    )


class InOrder:
    """Lets learners finish their tasks in one order only: each ends its backward pass when the one before it in the
    order has done all that comes of its own."""

    def __init__(self, events: Sequence[int]) -> None:
        self.events, self.place = list(events), 0
        self.changed = threading.Condition()

    def wait(self, where: str, learner: int, call: int) -> None:
        if where == "backward":
            with self.changed:
                assert self.changed.wait_for(lambda: self.events[self.place] == learner, SECONDS)

    def behind(self, finished: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
        def counted(learner: int, pace: Any) -> None:
            finished(learner, pace)
            with self.changed:
                self.place += 1
                self.changed.notify_all()

        return counted


def biased_gradient(weights: Any, learner: int, task: int) -> Any:
    """That of a task's example, where there is a bias."""
    index = np.empty(1, np.intp)
    TrainingOrder(EXAMPLES, 1, SEED).indices(task, index)
    x, y = rows[index[0]], targets[index[0]]
    return (weights[:FEATURES] @ x + weights[FEATURES] - y) * np.append(x, 1.0)


WITH_BIAS: dict[str, Any] = {
    "initial": [START] * (FEATURES + 1), "gradient": biased_gradient, "variables": [FEATURES, 1], "seed": SEED
}  # fmt: skip


def ordered(
    rule: Rule, learners: int, events: Sequence[int], solver: SolverConf, *, bias: bool = False, **options: Any
) -> tuple[Any, Any]:
    """z and the replicas after tasks that finish in this order."""
    order = InOrder(events)
    with context(
        linear(Probe(action=order.wait), bias=bias),
        data=Dataset((rows, targets)),
        rule=rule,
        learners=learners,
        batch_size=1,
        solver=solver,
        precision="float64",
        seed=SEED,
        **{"wpc": 1, **options},
    ) as running:
        for member in running.engine.members:
            member.learner.finished = order.behind(member.learner.finished)
        within(SECONDS, lambda: running.train(len(events), TASKS))
        layout = running.engine.program.model
        z = _flat(running.variables)
        replicas = [member.replica.weights for member in running.engine.members]
        return z, [z if weights is None else _flat(layout.export(weights)) for weights in replicas]


def _flat(variables: dict[str, Any]) -> Any:
    return np.concatenate([value.ravel() for value in variables.values()])


@one_in(2)
@pytest.mark.parametrize("solver", SOLVERS, ids=["plain", "momentum", "nesterov, l1", "clipped"])
@every_rule
def test_one_learner_is_as_the_simulator_has_it(rule: Rule, solver: SolverConf) -> None:
    if rule == Grouping(2):
        rule = Grouping(1)
    events = [0] * 12
    z, (weights,) = ordered(rule, 1, events, solver)
    made = expected(rule, 1, events, 12, solver)
    np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights, made.replicas[-1, 0], rtol=0, atol=1e-12)


@one_in(3)
@pairwise
@pytest.mark.parametrize("seed", range(len(SOLVERS)))
@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, Hogwild)], ids=str)
def test_several_learners_are_as_the_simulator_has_them(rule: Rule, learners: int, seed: int) -> None:
    """In an order that is drawn, each solver's its own, and then forced on the threads. (When Hogwild's learners read z
    nobody can say.)"""
    solver, tasks = SOLVERS[seed], 30
    wishes = np.random.default_rng(seed).integers(0, learners, 20 * tasks).tolist()
    made = expected(rule, learners, wishes, tasks, solver)
    assert len(made.events) == tasks
    z, replicas = ordered(rule, learners, made.events.tolist(), solver)
    np.testing.assert_allclose(replicas, made.replicas[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


DROPS = SolverConf(learning_rate=0.1, policy="step", gamma=0.5, step_size=12, momentum=0.5)
"""In 36 tasks the learners restart twice; they would at task 36, too."""


@in_turn
@pytest.mark.parametrize("learners", [1, 2, 3])
@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, Hogwild)], ids=str)
def test_learners_restart_as_in_the_simulator(rule: Rule, learners: int) -> None:
    if learners == 1 and rule == Grouping(2):
        rule = Grouping(1)
    wishes = np.random.default_rng(learners).integers(0, learners, 1000).tolist()
    made = expected(rule, learners, wishes, 36, DROPS)
    assert len(made.events) == 36
    z, replicas = ordered(rule, learners, made.events.tolist(), DROPS, wpc=None)
    np.testing.assert_allclose(replicas, made.replicas[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)


@in_turn
@pytest.mark.parametrize("learners", [1, 3])
@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.reads_base and not rule.sends_gradient], ids=str)
def test_learners_keep_variables_as_in_the_simulator(rule: Rule, learners: int) -> None:
    """Their bias. Behind the last merge, too, learners step it: z has the mean of what it is in the end."""
    wishes = np.random.default_rng(learners).integers(0, learners, 1000).tolist()
    options: dict[str, Any] = {"learners": learners, "tasks": 36, "events": wishes, "solver": DROPS}
    made = simulate(rule, **WITH_BIAS, **options, local_variables=[1])
    z, replicas = ordered(rule, learners, made.events.tolist(), DROPS, bias=True, wpc=None, local_variables=("*.bias",))
    np.testing.assert_allclose(replicas, made.replicas[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(z[:FEATURES], made.base[-1, :FEATURES], rtol=0, atol=1e-12)
    np.testing.assert_allclose(z[FEATURES], made.replicas[-1, :, FEATURES].mean(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "rule", [SSGD(), SMA(tau=2), ModelAveraging(tau=3), DiLoCo(tau=2), PolyakRuppert(alpha=0.3)], ids=str
)
def test_gradients_are_clipped_as_in_the_simulator_under_a_barrier_too(rule: Rule) -> None:
    made = expected(rule, 2, [0, 1] * 12, 24, SOLVERS[3])
    with context(
        linear(), data=Dataset((rows, targets)), rule=rule, learners=2, batch_size=1, solver=SOLVERS[3],
        precision="float64", seed=SEED,
    ) as running:  # fmt: skip
        running.train(24, TASKS)
        np.testing.assert_allclose(_flat(running.variables), made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2, base_momentum=0.3), ModelAveraging(tau=3), DiLoCo(tau=3)], ids=str)
def test_under_a_barrier_too(rule: Rule) -> None:
    options: dict[str, Any] = {"learners": 2, "tasks": 36, "events": [0, 1] * 18, "solver": DROPS}
    made = simulate(rule, **WITH_BIAS, **options, local_variables=[1])
    with context(
        linear(bias=True), data=Dataset((rows, targets)), rule=rule, learners=2, batch_size=1, solver=DROPS,
        precision="float64", seed=SEED, local_variables=("*.bias",),
    ) as running:  # fmt: skip
        running.train(36, TASKS)
        np.testing.assert_allclose(_flat(running.variables), made.base[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [
        AsynchronousSGD(),
        AsynchronousSGD(weight=0.5, sends="gradient"),
        SSP(bound=1),
        PartiallySynchronous(max_advance=2),
        WeedOut(window=3),
        Default(),
        Grouping(),
    ],
    ids=str,
)
def test_variables_are_left_out_as_in_the_simulator(rule: Rule) -> None:
    """Weights and bias, each with a probability of 0.4."""
    solver, tasks = SOLVERS[1], 30
    common: dict[str, Any] = {**WITH_BIAS, "learners": 2, "tasks": tasks}
    wishes = np.random.default_rng(3).integers(0, 2, 20 * tasks).tolist()
    common |= {"events": wishes, "solver": solver}
    made, whole = simulate(rule, **common, skip=0.4), simulate(rule, **common)
    assert not np.allclose(made.base[-1], whole.base[-1])
    z, replicas = ordered(rule, 2, made.events.tolist(), solver, bias=True, skip=0.4)
    np.testing.assert_allclose(z, made.base[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(replicas, made.replicas[-1], rtol=0, atol=1e-12)


@in_turn
@pytest.mark.parametrize(
    ("devices", "kernels"),
    [
        ("cpu", "reference"),
        pytest.param("cpu", "onednn", marks=FAST.marks),
        pytest.param("cpu:0/2,cpu:1/2", "onednn", marks=FAST.marks),
    ],
)
@every_rule
def test_training_leads_somewhere(rule: Rule, kernels: str, devices: str) -> None:
    """With learners that dawdle, on several devices too; twice, with a test in between."""
    solver = SolverConf(learning_rate=0.05, momentum=0.5)
    network = perceptron(Probe(action=dawdle(0.001)))
    learners = 4 if devices == "cpu" else 2
    with context(network, rule=rule, learners=learners, devices=devices, kernels=kernels, solver=solver) as running:
        before = within(SECONDS, lambda: running.train(12)).loss
        assert running.test().examples == 13
        history = within(SECONDS, lambda: running.train(6))
        assert history.stopped == "count"
        assert running.test().loss < 0.7
        assert history.loss < before
        assert running.engine.tasks >= 180


# Who waits for whom. (At the end of an epoch all wait: then nothing is running.)

LONG = blobs(examples=2400)


class Held:
    """Learner 0 stays in its first task until the others have done so many, and so many seconds longer."""

    def __init__(self, tasks: int, seconds: float = 0.0) -> None:
        self.tasks, self.seconds = tasks, seconds
        self.counted, self.enough = 0, threading.Event()
        self.held = False

    def __call__(self, where: str, learner: int, call: int) -> None:
        if where == "backward":
            if learner == 0 and not self.held:
                self.held = True
                self.enough.wait(SECONDS)
                time.sleep(self.seconds)  # more than may be done would be done by now
                self.found = self.counted
            elif learner:
                self.counted += 1
                if self.counted >= self.tasks:
                    self.enough.set()


@pytest.mark.slow
@one_in(6)
@pytest.mark.parametrize(
    ("rule", "done"),
    [
        (AsynchronousSGD(), 400),
        (Hogwild(), 400),
        (EASGD(), 400),
        (WeedOut(), 400),
        (Gossip(probability=0.5), 400),
        (SSP(bound=3), 4),
        (SSP(bound=0), 1),
        (PartiallySynchronous(max_advance=5), 5),
        (Default(), 1),
        (Grouping(((0,), (1,))), 400),
        (Grouping(((0, 1),)), 1),
    ],
    ids=str,
)
def test_a_slow_learner_keeps_back_the_others_as_far_as_the_rule_says(rule: Rule, done: int) -> None:
    """400 tasks are more than batches that wait, and than tasks that are handed out ahead. They come soon, or never."""
    held = Held(done, 0.0 if done == 400 else 0.3)
    with context(perceptron(Probe(action=held)), data=LONG, rule=rule, learners=2, solver=SOLVERS[0]) as running:
        within(2 * SECONDS, lambda: running.train(500, TASKS))
    assert held.found >= done if done == 400 else held.found == done


@pytest.mark.slow
@pytest.mark.parametrize(("slack", "done"), [(0, 1), (2, 5)])
def test_slack_bounds_how_far_tasks_run_ahead(slack: int, done: int) -> None:
    """With ticks of two tasks learner 1 does the other task of learner 0's tick, and `slack` whole ticks."""
    held = Held(done, 0.3)
    network = perceptron(Probe(action=held))
    with context(network, data=LONG, rule=AsynchronousSGD(), learners=2, slack=slack) as running:
        within(2 * SECONDS, lambda: running.train(60, TASKS))
    assert held.found == done


# What else they promise.


def test_statistics_are_the_learners_mean() -> None:
    network = training(InnerProduct(number_of_outputs=5), BatchNorm(), ReLU(), InnerProduct(number_of_outputs=3))
    with context(network, rule=AsynchronousSGD(), learners=3) as running:
        running.train(5)
        parts = running.engine.parts
        mean = np.mean([member.replica.statistics[0] for member in running.engine.members], axis=0)
        np.testing.assert_allclose(parts.bases[0].statistics[0], mean, rtol=1e-5)
        assert np.abs(mean).max() > 0


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip(probability=1), EASGD()], ids=str)
def test_a_drop_of_the_learning_rate_restarts_the_learners(rule: Rule, wanted: bool) -> None:
    solver = SolverConf(learning_rate=0.1, policy="step", gamma=0.1, step_size=20, momentum=0.5)
    restarts = []
    with context(rule=rule, learners=2, solver=solver, restart=wanted) as running:
        exchange = running.engine.coordination.exchange
        restart = exchange.restart

        def seen() -> None:
            restart()
            replicas = [member.replica for member in running.engine.members]
            z = running.engine.parts.bases[0].buffers[0]
            restarts.append(all(np.array_equal(replica.weights, z) for replica in replicas))
            assert not any(replica.velocity.any() for replica in replicas)

        exchange.restart = seen
        running.train(60, TASKS)
    assert restarts == [True, True] * wanted


@pytest.mark.parametrize(("rule", "merges"), [(AsynchronousSGD(), 60), (Gossip(), 60), (Grouping(1), 30)], ids=str)
def test_a_schedule_by_merges(rule: Rule, merges: int) -> None:
    solver = SolverConf(learning_rate=0.1, policy="exp", gamma=0.9, learning_rate_step_unit="merges")
    with context(rule=rule, learners=2, solver=solver) as running:
        running.train(60, TASKS)
        assert running.engine.merges == merges
        assert running.engine.scheduler.learning_rate == pytest.approx(0.1 * 0.9**merges)


def test_gossip_keeps_all_mass() -> None:
    with context(rule=Gossip(probability=0.7), learners=4) as running:
        for _ in range(3):
            running.train(50, TASKS)
            exchange = running.engine.coordination.exchange
            assert isinstance(exchange, PeerExchange)
            masses = exchange.masses
            assert sum(masses.own) + sum(masses.coming) == pytest.approx(1, abs=1e-12)
            terms = zip((*masses.own, *masses.coming), _vectors(running), strict=True)
            mean = sum(mass * vector.astype(np.float64) for mass, vector in terms)
            np.testing.assert_allclose(running.engine.parts.bases[0].buffers[0], mean, atol=1e-6)


def _vectors(running: ExecutionContext) -> list[Any]:
    replicas = [member.replica for member in running.engine.members]
    return [replica.weights for replica in replicas] + [replica.received for replica in replicas]


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Hogwild(), EASGD(), Gossip()], ids=str)
def test_on_the_fast_kernels_all_lists_are_native(rule: Rule, kernels: str) -> None:
    network = training(Conv(number_of_outputs=4, kernel_size=3), ReLU(), InnerProduct(number_of_outputs=3))
    with context(network, data=pictures(), rule=rule, kernels=kernels) as running:
        lists = [task.calls for member in running.engine.members for task in member.learner.tasks.values()]
        exchange = running.engine.coordination.exchange
        if isinstance(exchange, BaseExchange):
            bound = *itertools.chain(*exchange.server._merges), *exchange.server._replies
            lists += [each._calls for each in bound]
        for calls in lists:
            assert calls.native_calls == len(calls.calls)


# Failures.


@one_in(3)
@pairwise
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("learners", [1, 2, 3])
@every_rule
def test_an_operator_that_fails(rule: Rule, learners: int, where: str) -> None:
    if rule == Grouping(2) and learners == 1:
        rule = Grouping(1)
    trap = Trap(raising(ValueError("broken")), where=where, learner=learners - 1, call=6)
    with context(perceptron(Probe(action=trap)), rule=rule, learners=learners, solver=SOLVERS[1]) as running:
        with pytest.raises(TaskError, match="broken") as caught:
            within(SECONDS, lambda: running.train(1000))
        assert isinstance(caught.value.__cause__, ValueError)
        assert_usable(running)


def assert_usable(running: ExecutionContext, tmp_path: Path | None = None) -> None:
    parts, tasks = running.engine.parts, running.engine.tasks
    z = parts.bases[0].buffers[0].copy()
    assert np.isfinite(z).all()
    for member in running.engine.members:
        assert member.replica.weights is None or np.array_equal(member.replica.weights, z)
        assert member.replica.velocity is None or not member.replica.velocity.any()
    assert within(SECONDS, running.test).examples == 13
    history = within(SECONDS, lambda: running.train(20, TASKS))
    assert history.stopped == "count"
    assert running.engine.tasks >= tasks + 20
    assert np.isfinite(history.loss)


@pytest.mark.parametrize("rule", [AsynchronousSGD(), Hogwild(), SSP(), Gossip(probability=1)], ids=str)
def test_weights_that_diverge(rule: Rule) -> None:
    """Training begins again from the last base model that is whole: that of the beginning of the call."""
    with context(rule=rule, learners=2, solver=SolverConf(learning_rate=1e30)) as running:
        before = running.variables
        with pytest.raises(NonFiniteLossError):
            within(SECONDS, lambda: running.train(50))
        assert all(np.isfinite(value).all() for value in running.variables.values())
        del before


def test_a_test_that_fails_forgets_no_task() -> None:
    from tests.support import CheckProbe

    def fail(where: str, learner: int, call: int) -> None:
        if broken:
            raise ValueError("broken")

    broken: list[int] = []
    with context(perceptron(CheckProbe(action=fail)), rule=AsynchronousSGD(), learners=2) as running:
        running.train(20, TASKS)
        broken.append(1)
        with pytest.raises(TaskError):
            running.test()
        assert running.engine.tasks == 20
        broken.clear()
        assert running.test().examples == 13


@pytest.mark.slow
def test_ctrl_c_while_a_learner_waits_for_another() -> None:
    """As the second Ctrl-C, which is raised at once."""

    def stop() -> None:
        time.sleep(0.2)
        raise KeyboardInterrupt

    held = Held(1, 0.4)
    with context(perceptron(Probe(action=held)), rule=SSP(), learners=2) as running:
        running.engine.loader.next = stop  # type: ignore[method-assign,assignment]
        with pytest.raises(KeyboardInterrupt):
            within(SECONDS, lambda: running.train(50))
        del running.engine.loader.next  # type: ignore[method-assign]
        assert_usable(running)


# What does not go together.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"devices": "cuda:0,cuda:1"}, "rule must be one with a barrier on several GPUs"),
        ({"collective": FakeCollective(1)}, "collective must be None under a rule without a barrier"),
        ({"rule": EASGD(), "skip": 0.1}, "skip must be 0 under a rule whose learners do not add to z"),
        ({"rule": None, "skip": 0.1}, "skip must be 0 under a rule whose learners do not add to z"),
        (
            {"rule": SSP(), "skip": 0.1, "solver": SolverConf(clip_gradient_norm=1)},
            "skip must be 0 if gradients that are sent are clipped",
        ),
        ({"rule": Grouping(3)}, "groups must be at most the number of learners, 2"),
    ],
)
def test_what_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        context(**{"rule": AsynchronousSGD(), **options})


def test_wpc_is_the_length_of_a_tick_only() -> None:
    with context(rule=AsynchronousSGD(), learners=2, wpc=5) as running:
        assert running.train(7, TASKS).records[-1].tasks == 10
