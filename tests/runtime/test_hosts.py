"""Two levels of rules in training: as the simulator, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    ConfigurationError,
    Constant,
    Dataflow,
    Dataset,
    ModelConf,
    Phase,
    SolverConf,
    SubGraph,
    SystemConf,
)
from crossbow.cluster.ranks import Ranks
from crossbow.data.order import TrainingOrder
from crossbow.ops import BatchNorm, EuclideanLoss, InnerProduct
from crossbow.runtime.changing_engine import ChangingEngine, new_engine
from crossbow.runtime.engine import Engine
from crossbow.runtime.hosts import HostExchange, moved_in
from crossbow.runtime.limits import Limits
from crossbow.runtime.memory import on_host
from crossbow.runtime.run import TrainingRun
from crossbow.runtime.scheduler import Callbacks
from crossbow.solver import Pace
from crossbow.synch import (
    DiLoCo,
    ModelAveraging,
    PolyakRuppert,
    RuleSequence,
    SynchronousEASGD,
    TwoLevel,
    simulate,
)
from crossbow.types import Aborted, CrossbowError, TaskError, TrainingUnit
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.support import chain, raising, same_weights

EXAMPLES, FEATURES, BATCH = 32, 3, 2
START = 0.25
rows = np.random.default_rng(0).standard_normal((EXAMPLES, FEATURES))
targets = rows @ np.array([1.0, -2.0, 0.5]) + 0.1 * np.random.default_rng(1).standard_normal(EXAMPLES)
SYSTEM = SystemConf(precision="float64", threads_per_learner=1, seed=5)
SOLVER = SolverConf(learning_rate=0.1, momentum=0.5)


@dataclass
class Trained:
    """What a rank has after training."""

    weights: dict[str, Any]
    replicas: list[Any]
    tests: list[float]


def gradient(weights: Any, learner: int, task: int) -> Any:
    """That of a task's batch."""
    index = np.empty(BATCH, np.intp)
    TrainingOrder(EXAMPLES, BATCH, SYSTEM.seed).indices(task, index)
    x, y = rows[index], targets[index]
    if len(weights) > FEATURES:
        x = np.column_stack([x, np.ones(BATCH)])
    return (x @ weights - y) @ x / BATCH


def engine_of(
    ranks: Ranks | None,
    rule: Any,
    solver: SolverConf,
    system: SystemConf,
    *middle: Any,
    local: tuple[str, ...] = (),
    check_batch_size: int | None = None,
) -> Any:
    """local: the local variables; with any, the network has a bias."""
    layer = InnerProduct(number_of_outputs=1, weight_initialiser=Constant(START), bias=bool(local))
    flow = Dataflow(SubGraph(chain(layer, *middle, EuclideanLoss())[0])).set_phase(Phase.TRAIN)
    check = Dataflow(flow.subgraph).set_phase(Phase.CHECK)
    data = Dataset((rows, targets[:, None]), (rows[:9], targets[:9, None]))
    model = ModelConf(batch_size=BATCH, rule=rule, local_variables=local, check_batch_size=check_batch_size)
    return new_engine(flow.graph, check.graph, data, model, solver, system, ranks=ranks)


def train(
    ranks: Ranks | None, rule: Any, tasks: int, learners: int, solver: SolverConf = SOLVER, **options: Any
) -> Trained:
    middle, local = options.pop("middle", ()), options.pop("local", ())
    check_batch_size = options.pop("check_batch_size", None)
    system = replace(SYSTEM, learners_per_device=learners, **options)
    engine = engine_of(ranks, rule, solver, system, *middle, local=local, check_batch_size=check_batch_size)
    try:
        limits = Limits(count=tasks, unit=TrainingUnit.TASKS)
        model = ModelConf(batch_size=BATCH, rule=rule, test_interval=tasks, test_interval_unit=TrainingUnit.TASKS)
        history = TrainingRun(engine, model, limits, (), test=True, ranks=ranks).run()
        parts = engine.now.parts if isinstance(engine, ChangingEngine) else engine.parts
        vectors, base = [replica.weights for replica in parts.replicas], parts.program.model
        replicas = [None if each is None else flat(base.export(on_host(each))) for each in vectors]
        tests = [record.test.loss for record in history.records if record.test is not None]
        return Trained(engine.weights, replicas, tests)
    finally:
        engine.close()


def flat(variables: dict[str, Any]) -> Any:
    """Weights, and bias if there is one."""
    return np.concatenate(
        [variables[name].ravel() for name in ("InnerProduct0.weights", "InnerProduct0.bias") if name in variables]
    )


def train_on(
    learners: list[int], rule: Any, tasks: int, devices: Sequence[str] | None = None, **options: Any
) -> list[Trained]:
    """Train on as many ranks, each with this number of learners. devices: of each rank."""
    names = devices or ["cpu"] * len(learners)

    def of(ranks: Ranks, own: int, device: str) -> Callable[[], Trained]:
        each = own // len(device.split(","))
        return lambda: train(ranks, rule, tasks, each, devices=device, **options)

    triples = zip(FakeNetwork(len(learners)).ranks(), learners, names, strict=True)
    return at_once([of(*each) for each in triples])


def check_as_simulated(
    rule: TwoLevel | RuleSequence, hosts: list[int], tasks: int, solver: SolverConf, **options: Any
) -> None:
    """With local variables, the network's bias is one."""
    learners, more = sum(hosts), bool(options.get("local"))
    expected = simulate(
        rule, initial=[START] * FEATURES + [0.0] * more, gradient=gradient, learners=learners, hosts=hosts,
        events=[*range(learners)] * (tasks // learners), solver=solver, tasks_per_epoch=EXAMPLES / BATCH,
        variables=[FEATURES] + [1] * more, local_variables=[1] * more,
    )  # fmt: skip
    found = train_on(hosts, rule, tasks, solver=solver, **options)
    for each in found:
        np.testing.assert_allclose(flat(each.weights), expected.base[-1], rtol=0, atol=1e-12)
    replicas = [replica for each in found for replica in each.replicas]
    if replicas[0] is not None:
        np.testing.assert_allclose(replicas, expected.replicas[-1], rtol=0, atol=1e-12)
    z = expected.base[-1]
    loss = float(np.mean((rows[:9] @ z[:FEATURES] + z[FEATURES:].sum() - targets[:9]) ** 2) / 2)
    assert [each.tests[-1] for each in found] == pytest.approx([loss] * len(hosts), rel=1e-9)


@pytest.mark.parametrize(
    ("rule", "hosts"),
    [
        (TwoLevel(SMA(), ModelAveraging(tau=3)), [2, 2]),
        (TwoLevel(SMA(tau=2, base_momentum=0.25), DiLoCo(tau=3)), [1, 2]),
        (TwoLevel(SSGD(), SMA(alpha=0.4, tau=2, base_momentum=0.5)), [2, 1, 1]),
        (TwoLevel(ModelAveraging(tau=2), SynchronousEASGD(tau=1)), [2, 2]),
        (TwoLevel(DiLoCo(tau=2), PolyakRuppert(0.25, tau=2)), [1, 1]),
        (TwoLevel(SMA(), DiLoCo(tau=4)), [3]),
    ],
    ids=str,
)
def test_as_the_simulator(rule: TwoLevel, hosts: list[int]) -> None:
    check_as_simulated(rule, hosts, sum(hosts) * rule.tau * 4, SOLVER)


def test_schedules_that_step_down_within_a_tick_of_z() -> None:
    """The learners of a host restart from its own base model; α between the hosts follows the schedule."""
    solver = SolverConf(learning_rate=0.1, policy="step", gamma=0.5, step_size=15, momentum=0.5)
    solver = replace(solver, learning_rate_step_unit="tasks")
    rule = TwoLevel(SMA(), SMA(alpha=0.3, alpha_steps=((10, 0.1),), tau=3))
    check_as_simulated(rule, [2, 1], 36, solver)


@pytest.mark.parametrize(
    ("rule", "hosts"),
    [
        (TwoLevel(SMA(), SMA(alpha=0.4, tau=2, base_momentum=0.5)), [2, 1]),
        (TwoLevel(ModelAveraging(tau=2), DiLoCo(tau=2)), [2, 2]),
    ],
    ids=str,
)
def test_local_variables(rule: TwoLevel, hosts: list[int]) -> None:
    """z has the mean over the hosts of their learners' means, and the exchange moves no learner's own."""
    check_as_simulated(rule, hosts, sum(hosts) * rule.tau * 4, SOLVER, local=("*bias",))


@pytest.mark.parametrize("unit", ["tasks", "merges"])
def test_rules_in_turn(unit: Any) -> None:
    """Three ticks of the hosts are two of z; DiLoCo's velocity and the averages between hosts begin with each phase."""
    first, second = TwoLevel(SMA(tau=2), DiLoCo(tau=2)), TwoLevel(ModelAveraging(tau=2), PolyakRuppert(tau=2))
    rule = RuleSequence(((first, 3), (second, 4)))
    solver = replace(SOLVER, policy="step", gamma=0.8, step_size=5 if unit == "merges" else 31)
    check_as_simulated(rule, [2, 1], 3 * rule.tau * 7, replace(solver, learning_rate_step_unit=unit))


def test_devices_of_a_host() -> None:
    rule = TwoLevel(SMA(), SMA(tau=2))
    check_as_simulated(rule, [2, 2], 32, SOLVER, sum_order="tree")
    one = train_on([2, 2], rule, 32)
    two = train_on([2, 2], rule, 32, devices=["cpu:0/2,cpu:1/2"] * 2)
    for before, now in zip(one, two, strict=True):
        np.testing.assert_allclose(before.replicas, now.replicas, rtol=0, atol=1e-12)
        assert before.tests == pytest.approx(now.tests, rel=1e-9)


def test_ranks_have_one_base_model_with_its_statistics() -> None:
    found = train_on([1, 2], TwoLevel(SMA(), SMA(tau=2)), 24, middle=[BatchNorm()])
    assert len({name for name in found[0].weights if "mean" in name}) == 1
    assert same_weights(found[0].weights, found[1].weights)
    assert found[0].tests == found[1].tests


def test_a_tick_of_z_is_never_left_unfinished() -> None:
    """Training is rounded up to ticks of z, and a failure takes it back to the last one."""
    rule = TwoLevel(SMA(), DiLoCo(tau=4))
    engine = engine_of(None, rule, SOLVER, replace(SYSTEM, learners_per_device=2))
    try:
        model = ModelConf(batch_size=BATCH, rule=rule)
        TrainingRun(engine, model, Limits(count=9, unit=TrainingUnit.TASKS), (), test=False).run()
        assert (engine.tasks, engine.tick) == (16, 8)
        before = engine.weights
        engine.scheduler.run_tick, run_tick = fail_after(3, engine.scheduler.run_tick), engine.scheduler.run_tick
        with pytest.raises(RuntimeError, match="on purpose"):
            TrainingRun(engine, model, Limits(count=8, unit=TrainingUnit.TASKS), (), test=False).run()
        assert (engine.tasks, engine.tick) == (16, 8)
        assert same_weights(engine.weights, before)
        for replica in engine.parts.replicas:
            np.testing.assert_array_equal(replica.weights, engine.recovery.base[0])
        engine.scheduler.run_tick = run_tick  # type: ignore[method-assign]
        TrainingRun(engine, model, Limits(count=8, unit=TrainingUnit.TASKS), (), test=False).run()
        assert engine.tasks == 24
    finally:
        engine.close()


def test_a_failure_after_an_exchange_leaves_it_done() -> None:
    engine = engine_of(None, TwoLevel(SMA(), DiLoCo(tau=4)), SOLVER, replace(SYSTEM, learners_per_device=2))
    try:
        with pytest.raises(RuntimeError, match="on purpose"):
            engine.run(24, Callbacks(stop=fail_after(2, lambda: False)))
        assert (engine.tasks, engine.tick) == (16, 8)
    finally:
        engine.close()


def fail_after(times: int, work: Callable[..., Any]) -> Any:
    """The function, which fails after this number of calls."""
    left = [times]

    def called(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("on purpose")
        return work(*arguments)

    return called


def test_snapshots_of_one_host_are_whole() -> None:
    rule, system = TwoLevel(SMA(), DiLoCo(tau=3)), replace(SYSTEM, learners_per_device=2)
    first, second = (engine_of(None, rule, SOLVER, system) for _ in range(2))
    try:
        model = ModelConf(batch_size=BATCH, rule=rule)

        def go_on(engine: Engine) -> None:
            TrainingRun(engine, model, Limits(count=12, unit=TrainingUnit.TASKS), (), test=False).run()

        go_on(first)
        assert second.restore(first.snapshot(), "a snapshot")
        go_on(first)
        go_on(second)
        assert same_weights(first.weights, second.weights)
    finally:
        first.close()
        second.close()


def test_a_rule_that_swings_apart_is_refused_for_the_number_of_hosts() -> None:
    rule = TwoLevel(SMA(), SMA(alpha=0.9, tau=2))
    with pytest.raises(ConfigurationError, match=r"alpha must be < .* with k = 2 learners"):
        train_on([1, 1], rule, 8)


def test_formulas_have_no_gradient() -> None:
    from crossbow.runtime.hosts import host_formulas

    formulas = host_formulas(SMA(alpha=0.25), 2)
    assert formulas.at(Pace(0.7, 0.9)).tolist() == pytest.approx([0.5, 0.5, 0.75, 0.25])


@pytest.mark.parametrize("gpus", [0, 1, 3])
def test_what_moves_in_each_memory(gpus: int) -> None:
    """CPUs share a memory, with all base models and replicas. On GPUs, every one has its own, and those after the first
    a copy of the weights."""
    bases = [SimpleNamespace(mean=f"mean of {gpu}") for gpu in range(max(gpus, 2))]
    copies = [SimpleNamespace(buffers=[f"copy on {gpu}"] * 2) for gpu in range(1, gpus)]
    outer = SimpleNamespace(copies=copies, weights="weights", base=SimpleNamespace(mean="mean of z"))
    places = [0, 0, 1, 2, 1] if gpus > 1 else [0, 0]
    assembly = SimpleNamespace(
        bases=bases[: gpus or 2], replicas=[f"learner {number}" for number in range(len(places))]
    )
    backend = SimpleNamespace(device_of=places)
    expected: list[Any] = [(bases, ["learner 0", "learner 1"], "weights", "mean of z")]
    if gpus > 1:
        expected = [
            ([bases[0]], ["learner 0", "learner 1"], "weights", "mean of 0"),
            ([bases[1]], ["learner 2", "learner 4"], "copy on 1", "mean of 1"),
            ([bases[2]], ["learner 3"], "copy on 2", "mean of 2"),
        ]
    if gpus == 1:
        expected = [([bases[0]], *expected[0][1:])]
    assert moved_in(assembly, outer, backend) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Aborted(), CrossbowError, "^the context was closed during an exchange between hosts$"),
        (CrossbowError("a rank has left"), CrossbowError, "^a rank has left$"),
        (KeyError("what"), TaskError, "'average between hosts' of 3 hosts: KeyError: 'what'$"),
    ],
    ids=repr,
)
def test_an_exchange_that_fails(error: Exception, kind: type[Exception], text: str) -> None:
    exchange: Any = SimpleNamespace(
        _numbers=np.zeros(1),
        _formulas=SimpleNamespace(at=lambda pace: np.ones(1)),
        _backend=SimpleNamespace(synchronise=lambda: None, call=lambda work: work()),
        _steps=[[SimpleNamespace(call=raising(error))]] * 2,
        _ranks=SimpleNamespace(size=3),
    )
    with pytest.raises(kind, match=text):
        HostExchange.exchange(exchange, Pace(0.1, 0.0), 3)


def test_training_ends_at_the_tick_of_z_in_which_a_loss_is_reached() -> None:
    """With one level, the results of some ticks are still missing then."""
    engine = engine_of(
        None, TwoLevel(SMA(tau=2), ModelAveraging(tau=3)), SOLVER, replace(SYSTEM, learners_per_device=2)
    )
    try:
        run = TrainingRun(engine, ModelConf(batch_size=BATCH), Limits(loss=1e9), (), test=False)
        run.run()
        assert run.reached == engine.tasks == engine.boundary == 24  # the first of 12 n tasks after an epoch, of 16
    finally:
        engine.close()


def test_within_a_tick_of_z_the_boundary_is_that_before() -> None:
    system = replace(SYSTEM, learners_per_device=2)
    engine = engine_of(None, TwoLevel(SMA(tau=2), ModelAveraging(tau=3)), SOLVER, system)
    places, coordination = [], engine.coordination
    end_tick = coordination.end_tick

    def noted(task: Any) -> None:
        places.append((engine.tasks, engine.boundary))
        end_tick(task)

    coordination.end_tick = noted
    try:
        engine.run(24, Callbacks(lambda result: None))
        assert places == [(0, 0), (4, 0), (8, 0), (12, 12), (16, 12), (20, 12)]
    finally:
        engine.close()
