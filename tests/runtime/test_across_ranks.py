"""Training on several ranks: the same bits as on one, whatever the distribution of the learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    ConfigurationError,
    Dataflow,
    Dataset,
    History,
    ModelConf,
    Monitor,
    Phase,
    SolverConf,
    SystemConf,
)
from crossbow.cluster.ranks import Ranks
from crossbow.data.examples import BadExample
from crossbow.data.rank_shares import share_of_rank
from crossbow.data.shards import Sharding
from crossbow.ops import BatchNorm, Conv, InnerProduct, Kernel, ReLU
from crossbow.runtime.changing_engine import new_engine
from crossbow.runtime.cpu.backend import CpuBackend
from crossbow.runtime.engine import Engine
from crossbow.runtime.limits import Limits
from crossbow.runtime.run import TrainingRun
from crossbow.synch import (
    EASGD,
    AsynchronousSGD,
    BarrierRule,
    DiLoCo,
    HostCollective,
    ModelAveraging,
    PolyakRuppert,
    Rule,
    RuleSequence,
    TwoLevel,
)
from crossbow.types import TrainingUnit
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.combinations import one_in
from tests.runtime.test_loading import dataset
from tests.support import FAST_KERNELS, blobs, same_weights, training, with_metrics

DATA = blobs(83, 29)
MODEL = ModelConf(batch_size=4)
SYSTEM = SystemConf(kernels=FAST_KERNELS, threads_per_learner=1, seed=3)
SOLVER = SolverConf(learning_rate=0.05, momentum=0.9, weight_decay=0.001)


@dataclass
class Trained:
    """What one rank has after training."""

    weights: dict[str, Any]
    history: History
    bad: list[list[int]]
    """The bad examples of each phase."""


def train(
    ranks: Ranks | None,
    model: ModelConf,
    system: SystemConf,
    limits: Limits | None = None,
    solver: SolverConf = SOLVER,
    data: Dataset = DATA,
    monitors: Sequence[Monitor] = (),
    hidden: Kernel | None = None,
) -> Trained:
    """hidden: the first operator."""
    first = hidden or InnerProduct(number_of_outputs=8)
    flow = with_metrics(training(first, BatchNorm(), ReLU(), InnerProduct(number_of_outputs=3)), 1, 2, 3)
    check = Dataflow(flow.subgraph).set_phase(Phase.CHECK)
    engine = new_engine(flow.graph, check.graph, data, model, solver, system, ranks=ranks)
    try:
        limits = limits or Limits(count=2)
        history = TrainingRun(engine, model, limits, monitors, test=True, ranks=ranks).run()
        bad = [sorted(example.index for example in found.all()) for found in engine.bad_examples.values()]
        return Trained(engine.weights, history, bad)
    finally:
        engine.close()


def train_on(
    learners: list[int], model: ModelConf, system: SystemConf = SYSTEM, *, one_host: bool = False, **more: Any
) -> list[Trained]:
    """Train on as many ranks, each with this number of learners. one_host: whether they can share memory."""

    def of(ranks: Ranks, own: int) -> Callable[[], Trained]:
        return lambda: train(ranks, model, replace(system, learners_per_device=own), **more)

    pairs = zip(FakeNetwork(len(learners), one_host=one_host).ranks(), learners, strict=True)
    return at_once([of(ranks, own) for ranks, own in pairs])


def losses(trained: Trained) -> list[Any]:
    return [(each.tasks, each.loss, each.test) for each in trained.history.records]


ON_ONE_HOST = pytest.mark.parametrize("one_host", [False, True], ids=["messages", "shared memory"])
"""How ranks exchange vectors."""
RULES = [
    SMA(),
    SMA(alpha=0.15, tau=2, base_momentum=0.3),
    SSGD(),
    ModelAveraging(tau=3),
    PolyakRuppert(),
]


@ON_ONE_HOST
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=repr)
def test_adaptive_methods_too(rule: BarrierRule, one_host: bool) -> None:
    solver = SolverConf(method="adam", learning_rate=0.01)
    model = replace(MODEL, rule=rule)
    alone = train(None, model, replace(SYSTEM, learners_per_device=3), solver=solver)
    assert all(
        same_weights(alone.weights, each.weights) for each in train_on([2, 1], model, solver=solver, one_host=one_host)
    )


@one_in(3)
@ON_ONE_HOST
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_ranks_and_devices_compute_the_bits_of_one_device(rule: BarrierRule, one_host: bool) -> None:
    model = replace(MODEL, rule=rule)
    alone = train(None, model, replace(SYSTEM, learners_per_device=4))
    devices = train(None, model, replace(SYSTEM, learners_per_device=2, devices="cpu:0/2,cpu:1/2"))
    several = [each for learners in ([2, 2], [1, 2, 1]) for each in train_on(learners, model, one_host=one_host)]
    assert len(several) == 5
    assert alone.history.records[-1].test.metrics.keys() == {"top2", "top3"}  # type: ignore[union-attr]
    for other in [devices, *several]:
        assert same_weights(alone.weights, other.weights)
        assert losses(alone) == losses(other)


@ON_ONE_HOST
@pytest.mark.parametrize(
    ("model", "solver"),
    [
        (replace(MODEL, rule=SSGD()), replace(SOLVER, clip_gradient_norm=0.3)),
        (replace(MODEL, rule=SMA(), local_variables=("*bias*",)), SOLVER),
        (MODEL, replace(SOLVER, learning_rate_step_unit="merges", policy="step", gamma=0.7, step_size=3)),
        (MODEL, replace(SOLVER, learning_rate_step_unit="merges", policy="inv", gamma=0.1, power=0.75)),
    ],
    ids=["clipped gradients", "local variables", "steps by merges", "decay by merges"],
)
def test_settings_of_the_solver_and_the_model(model: ModelConf, solver: SolverConf, one_host: bool) -> None:
    alone = train(None, model, replace(SYSTEM, learners_per_device=3), solver=solver)
    for each in train_on([1, 2], model, solver=solver, one_host=one_host):
        assert same_weights(alone.weights, each.weights)
        assert losses(alone) == losses(each)


@pytest.mark.slow
@ON_ONE_HOST
def test_restarts_where_the_learning_rate_steps_down(one_host: bool) -> None:
    """Ranks restart one after the other, and results of those that have gone on belong to the next stretch."""
    solver = replace(SOLVER, policy="step", gamma=0.7, step_size=6)
    alone = train(None, MODEL, replace(SYSTEM, learners_per_device=3), solver=solver)
    for each in train_on([1, 1, 1], MODEL, solver=solver, one_host=one_host):
        assert same_weights(alone.weights, each.weights)
        assert losses(alone) == losses(each)


@ON_ONE_HOST
def test_sequences_of_rules(one_host: bool) -> None:
    """The same bits as on one machine, phase by phase."""
    model = replace(MODEL, rule=RuleSequence(((SMA(base_momentum=0.4), 2), (SSGD(), 3), (PolyakRuppert(), 1))))
    alone = train(None, model, replace(SYSTEM, learners_per_device=3))
    for each in train_on([1, 2], model, one_host=one_host):
        assert same_weights(alone.weights, each.weights)
        assert losses(alone) == losses(each)


@pytest.mark.parametrize("learners", [[2, 1], [1, 1, 1]], ids=str)
@pytest.mark.parametrize(
    "rule", [SMA(), DiLoCo(tau=2), TwoLevel(SMA(), DiLoCo(tau=4)), EASGD(alpha=0.3), AsynchronousSGD()], ids=repr
)
def test_frozen_variables_keep_their_bits(rule: Rule, learners: list[int]) -> None:
    frozen = InnerProduct(number_of_outputs=8, weight_learning_rate_multiplier=0.0)
    alone = train(None, MODEL, replace(SYSTEM, learners_per_device=1), hidden=frozen)
    for each in train_on(learners, replace(MODEL, rule=rule), hidden=frozen):
        np.testing.assert_array_equal(each.weights["InnerProduct0.weights"], alone.weights["InnerProduct0.weights"])


def test_a_rank_with_two_devices() -> None:
    alone = train(None, MODEL, replace(SYSTEM, learners_per_device=4))
    found = train_on([1, 1], MODEL, replace(SYSTEM, devices="cpu:0/2,cpu:1/2"))
    assert all(same_weights(alone.weights, each.weights) for each in found)


def test_a_tree_is_the_same_on_all_ranks_and_close_to_a_chain() -> None:
    chain = train(None, MODEL, replace(SYSTEM, learners_per_device=4))
    first, second = train_on([2, 2], MODEL, replace(SYSTEM, sum_order="tree"))
    assert same_weights(first.weights, second.weights)
    for name, values in chain.weights.items():
        np.testing.assert_allclose(first.weights[name], values, rtol=1e-4, atol=1e-5)


def test_more_learners_than_batches_of_the_test() -> None:
    alone = train(None, replace(MODEL, check_batch_size=29), replace(SYSTEM, learners_per_device=3))
    found = train_on([1, 1, 1], replace(MODEL, check_batch_size=29))
    assert [losses(each) for each in found] == [losses(alone)] * 3


@pytest.mark.slow
def test_rank_0_ends_training_for_all_at_one_tick() -> None:
    """By the time that it measures, and by the losses of all ranks."""
    limits = Limits(count=10_000, seconds=0.3)
    first, second = train_on([1, 1], MODEL, limits=limits)
    assert first.history.stopped == second.history.stopped == "duration"
    assert losses(first) == losses(second)
    limits = Limits(count=200, unit=TrainingUnit.TASKS, loss=0.6)
    alone = train(None, MODEL, replace(SYSTEM, learners_per_device=2), limits=limits)
    found = train_on([1, 1], MODEL, limits=limits)
    assert alone.history.stopped == "loss"
    assert [losses(each) for each in found] == [losses(alone)] * 2


def test_bad_examples_are_left_out_and_all_ranks_know_them() -> None:
    """A rank reads only its own batches, and so finds a part."""

    class Told(Monitor):
        def bad_example(self, phase: Phase, example: BadExample) -> None:
            told.append((phase, example.index, example.source))

    told: list[tuple[Phase, int, str]] = []
    data, system = dataset([3, 8, 17, 18], [0, 5, 9]), replace(SYSTEM, on_bad_record="skip")
    limits = Limits(count=3)
    alone = train(None, MODEL, replace(system, learners_per_device=2), data=data, limits=limits)
    assert alone.bad == [[3, 8, 17, 18], [0, 5, 9]]
    for learners in ([1, 1], [1, 2]):
        found = train_on(learners, MODEL, system, data=data, limits=limits)
        assert [each.bad for each in found] == [alone.bad] * 2
        assert losses(found[0]) == losses(found[1])
        if sum(learners) == 2:
            assert [losses(each) for each in found] == [losses(alone)] * 2
            assert all(same_weights(each.weights, alone.weights) for each in found)
    train_on([1, 1], MODEL, system, data=data, limits=limits, monitors=[Told()])
    expected = [(Phase.TRAIN, index) for index in alone.bad[0]] + [(Phase.CHECK, index) for index in alone.bad[1]]
    assert sorted(told, key=str) == sorted(
        2 * [(phase, index, f"file {index // 5}, record {index % 5}") for phase, index in expected], key=str
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threads", "choice"),
    [((1, 2), "for one thread"), ((2, 1), "for one thread"), ((1, 2), "for the processor")],
    ids=str,
)
def test_learners_of_ranks_may_have_other_kernels(
    threads: tuple[int, ...], choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own convolutions are for one thread, and have another layout of weights than oneDNN's. Where kernels choose
    for the processor, ranks choose different ones even for one thread; numbers of threads stand for processors here."""
    call = CpuBackend.call
    images = np.random.default_rng(0).random((40, 32, 12, 12), np.float32)
    data = Dataset((images, np.arange(40) % 3), (images[:8], np.arange(8) % 3), number_of_classes=3)
    model, hidden = replace(MODEL, batch_size=8), Conv(64, 3, padding=1)

    def of(ranks: Ranks, own: int) -> Callable[[], Trained]:
        system = replace(SYSTEM, threads_per_learner=own, learners_per_device=1)
        return lambda: train(ranks, model, system, data=data, hidden=hidden)

    if choice == "for the processor":
        monkeypatch.setattr(CpuBackend, "call", lambda *given, alone=False: call(*given))
    first, second = at_once([of(*pair) for pair in zip(FakeNetwork(2).ranks(), threads, strict=True)])
    alone = train(None, model, replace(SYSTEM, learners_per_device=2), data=data, hidden=hidden)
    assert same_weights(first.weights, second.weights)
    for name, value in alone.weights.items():
        np.testing.assert_allclose(first.weights[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sharding", ["stride", [(0, 0.5), (0.5, 1)]], ids=str)
def test_bad_examples_of_a_part_are_known_by_their_numbers_in_the_whole(sharding: Sharding) -> None:
    class Told(Monitor):
        def bad_example(self, phase: Phase, example: BadExample) -> None:
            told.append((phase, example.index, example.source))

    told: list[tuple[Phase, int, str]] = []
    whole, system = dataset([3, 8, 17, 18], [0, 5, 9]), replace(SYSTEM, learners_per_device=1, on_bad_record="skip")

    def of(ranks: Ranks) -> Callable[[], Trained]:
        data = share_of_rank(whole, sharding, ranks)
        monitors = [Told()] if ranks.is_first else []
        return lambda: train(ranks, MODEL, system, limits=Limits(count=3), data=data, monitors=monitors)

    first, second = at_once([of(ranks) for ranks in FakeNetwork(2).ranks()])
    assert first.bad == second.bad == [[3, 8, 17, 18], [0, 5, 9]]
    assert losses(first) == losses(second)
    assert sorted(told, key=str) == sorted(
        (
            (phase, index, f"file {index // 5}, record {index % 5}")
            for phase, indices in zip((Phase.TRAIN, Phase.CHECK), first.bad, strict=True)
            for index in indices
        ),
        key=str,
    )


def test_a_collective_is_refused() -> None:
    flow = training(InnerProduct(number_of_outputs=3))
    first, _ = FakeNetwork(2).ranks()
    with pytest.raises(ConfigurationError, match="collective must be None across ranks"):
        Engine(flow.graph, flow.graph, DATA, MODEL, SOLVER, SYSTEM, HostCollective(1), ranks=first)
