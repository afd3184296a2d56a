"""Ranks whose learners combine vectors in memory that these ranks share: what differs from learners of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, Dataflow, ModelConf, Phase, SystemConf
from crossbow.cluster.members import RankFailedError
from crossbow.cluster.ranks import Ranks
from crossbow.ops import BatchNorm, InnerProduct, ReLU
from crossbow.runtime.engine import Engine
from crossbow.runtime.recovery import Recovery
from crossbow.runtime.scheduler import Callbacks
from crossbow.runtime.setting import RunSetting
from crossbow.synch import EASGD, BarrierRule, DiLoCo, TwoLevel
from crossbow.types import Array, CrossbowError, NonFiniteLossError, TaskError
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.runtime.test_across_ranks import DATA, MODEL, SOLVER, SYSTEM
from tests.support import FAST_KERNELS, same_weights, training

pytestmark = pytest.mark.skipif(FAST_KERNELS == "reference", reason="needs compiled kernels")


@contextmanager
def engine_of(
    ranks: Ranks | None, learners: int = 1, model: ModelConf = MODEL, system: SystemConf = SYSTEM
) -> Iterator[Engine]:
    flow = training(InnerProduct(number_of_outputs=8), BatchNorm(), ReLU(), InnerProduct(number_of_outputs=3))
    check = Dataflow(flow.subgraph).set_phase(Phase.CHECK)
    system = replace(system, learners_per_device=learners)
    engine = Engine(flow.graph, check.graph, DATA, model, SOLVER, system, ranks=ranks)
    try:
        yield engine
    finally:
        engine.close()


def on_ranks(learners: list[int], work: Callable[[Engine, Ranks], Any], **more: Any) -> list[Any]:
    """What `work` returns on ranks of one host."""

    def of(ranks: Ranks, own: int) -> Callable[[], Any]:
        def run() -> Any:
            with engine_of(ranks, own, **more) as engine:
                return work(engine, ranks)

        return run

    pairs = zip(FakeNetwork(len(learners), one_host=True).ranks(), learners, strict=True)
    return at_once([of(ranks, own) for ranks, own in pairs])


def weights_after(ticks: int, learners: int) -> dict[str, Array]:
    """The base model of one process."""
    with engine_of(None, learners) as engine:
        engine.run(ticks * learners, Callbacks())
        return engine.weights


def shared(engine: Engine, ranks: Ranks) -> bool:
    setting: RunSetting = engine.parts.setting
    assert (setting.shared is not None) == bool(engine.parts.all_replicas)
    assert setting.adds_parts == (setting.shared is None and setting.barrier and engine.parts.outer is None)
    return setting.shared is not None


@pytest.mark.parametrize(
    ("model", "system", "expected"),
    [
        (MODEL, SYSTEM, True),
        (MODEL, replace(SYSTEM, sum_order="tree"), True),
        (MODEL, replace(SYSTEM, shared_memory=False), False),
        (MODEL, replace(SYSTEM, kernels="reference"), False),
        (MODEL, replace(SYSTEM, devices="cpu:0/2,cpu:1/2"), False),
        (replace(MODEL, rule=EASGD()), SYSTEM, False),
        (replace(MODEL, rule=TwoLevel(SMA(), DiLoCo(tau=2))), SYSTEM, False),
    ],
    ids=["default", "tree", "off", "reference", "two devices", "no barrier", "two levels"],
)
def test_when_ranks_share_memory(model: ModelConf, system: SystemConf, expected: bool) -> None:
    assert on_ranks([1, 1], shared, model=model, system=system) == [expected] * 2


def test_if_one_rank_has_two_devices_none_shares() -> None:
    def of(ranks: Ranks, devices: str) -> Callable[[], bool]:
        def run() -> bool:
            with engine_of(ranks, 1, system=replace(SYSTEM, devices=devices)) as engine:
                return engine.parts.setting.shared is not None

        return run

    pairs = zip(FakeNetwork(2, one_host=True).ranks(), ("cpu", "cpu:0/2,cpu:1/2"), strict=True)
    assert at_once([of(*pair) for pair in pairs]) == [False, False]


def test_an_engine_that_cannot_begin_with_the_others_ends_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(recovery: Recovery) -> None:
        raise RankFailedError("on purpose")

    monkeypatch.setattr(Recovery, "restart", fail)
    before = threading.active_count()
    with pytest.raises(RankFailedError), engine_of(None, 2):
        pass
    assert threading.active_count() == before


def test_learners_merge_slices_of_one_base_model() -> None:
    """Each rank writes a part of the memory, and all have the whole."""

    def work(engine: Engine, ranks: Ranks) -> Any:
        assert engine.coordination.synchroniser is None  # type: ignore[attr-defined]
        engine.run(30, Callbacks())
        vectors = engine.parts.all_replicas[2].vectors()["weights"], engine.parts.base.buffers[0]
        ranks.gather(None)
        if ranks.rank == 1:
            for vector in vectors:
                vector[...] = 5
        ranks.gather(None)
        return [bool((vector == 5).all()) for vector in vectors]

    assert on_ranks([1, 2], work) == [[True, True]] * 2


def test_an_engine_goes_back_to_an_earlier_tick() -> None:
    """Flags of later ticks are not taken for those of the next one."""

    def work(engine: Engine, ranks: Ranks | None) -> list[dict[str, Array]]:
        found = []
        start = engine.snapshot()
        if ranks is not None and ranks.rank == 1:
            restart = engine.recovery._restart
            engine.recovery._restart = lambda: (time.sleep(0.05), restart())  # type: ignore[assignment, func-returns-value]
        for number in range(4):
            if ranks is not None and ranks.rank == number % 2:
                time.sleep(0.02)  # the other one begins before this one
            engine.run(engine.tasks + 12, Callbacks())
            found.append(engine.weights)
            if number == 1:
                engine.restore(start, "the start")
        return found

    with engine_of(None, 2) as engine:
        engine.load(engine.weights, "itself")
        alone = [*work(engine, None)]
    for of_rank in on_ranks([1, 1], work):
        assert same_weights(of_rank[1], alone[1])
        # Ranks restore the base model only, as at the start.
        assert same_weights(of_rank[2], of_rank[0])
        assert same_weights(of_rank[3], of_rank[1])


def test_a_rank_reads_its_base_model_before_another_one_changes_it() -> None:
    values = {}

    def work(engine: Engine, ranks: Ranks) -> bool:
        engine.run(10, Callbacks())
        before = values.setdefault("weights", engine.weights)
        if ranks.rank:
            time.sleep(0.1)
        unchanged = same_weights(engine.weights, before)
        engine.load({name: value + 1 for name, value in before.items()}, "a test")
        return unchanged

    assert on_ranks([1, 1], work) == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_after_a_failure_every_rank_has_a_whole_base_model(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may be at different ticks. What one does then is not seen by the others."""
    monkeypatch.setattr("crossbow.cluster.ranks.SECONDS_TO_END", 0.1)
    whole = {ticks: weights_after(ticks, 3) for ticks in range(14)}

    def work(engine: Engine, ranks: Ranks) -> int:
        seen = []

        def fail() -> bool:
            seen.append(1)
            if ranks.rank == failing and len(seen) == 9:
                raise ValueError("on purpose")
            return False

        def train() -> None:
            with ranks.call():
                engine.run(3000, Callbacks(stop=fail))

        with pytest.raises((ValueError, RankFailedError, TaskError)):
            train()
        found = engine.weights
        assert same_weights(found, whole[engine.tick])
        for replica in engine.parts.replicas:  # others may still read it
            assert not same_vector(replica.vectors()["weights"], engine.recovery.base[0])
        assert not same_vector(*engine.parts.base.buffers)
        for vector in engine.recovery.base:
            vector[...] = np.nan
        ranks.transport.send(b"", 1 - ranks.rank, 99)
        while ranks.transport.receive(99) is None:  # after the other one's
            time.sleep(0.001)
        for vector, value in zip(engine.recovery.base, base_of(engine), strict=True):
            assert np.isnan(vector).all()
            assert np.isfinite(value).all()
        return engine.tick

    def base_of(engine: Engine) -> tuple[Array, Array]:
        base, tick = engine.parts.base, engine.tick
        return base.current(tick), base.statistics[tick % 2]

    def same_vector(first: Array, second: Array) -> bool:
        return bool((first == second).all())

    ticks = on_ranks([1, 2], work)
    assert max(ticks) - min(ticks) <= 2


def test_weights_that_are_not_finite_are_left_for_those_of_the_beginning() -> None:
    """Ranks go back one after the other, which does not change the flags that they share."""

    def work(engine: Engine, ranks: Ranks) -> None:
        engine.run(12, Callbacks())
        before, flags = engine.weights, engine.parts.flags
        weights = engine.parts.replicas[0].weights
        assert weights is not None
        weights[...] = np.nan
        ranks.gather(None)
        recover = engine.recovery.recover

        def late(**given: bool) -> bool:
            time.sleep(0.1 * ranks.rank)
            return recover(**given)

        engine.recovery.recover = late  # type: ignore[method-assign]
        with pytest.raises((NonFiniteLossError, TaskError)):
            engine.run(30, Callbacks())
        assert engine.tick == 6
        assert same_weights(engine.weights, before)
        ranks.gather(None)
        assert flags.whole_ticks > 6
        with pytest.raises(CrossbowError, match="the learners cannot go on after a failure of ranks that share memory"):
            engine.run(30, Callbacks())
        with pytest.raises(CrossbowError, match="the learners cannot go on"):
            engine.load(before, "itself")

    on_ranks([1, 1], work)


def test_after_a_failed_test_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.cluster.ranks.SECONDS_TO_END", 0.1)

    def work(engine: Engine, ranks: Ranks) -> dict[str, Array]:
        def read() -> None:
            with ranks.call():
                engine.test()

        engine.run(24, Callbacks())
        loader = engine.parts.check.loader  # type: ignore[union-attr]
        given = loader.next
        if ranks.rank == 1:
            loader.next = fail
        with pytest.raises((ValueError, RankFailedError)):
            read()
        loader.next = given
        with ranks.call():
            ranks.forget_failures()
            assert engine.test().examples == 29
            engine.run(36, Callbacks())
        return engine.weights

    def fail() -> Any:
        raise ValueError("on purpose")

    model = replace(MODEL, check_batch_size=4)
    with engine_of(None, 2, model) as engine:
        for tasks in (24, 36):
            engine.load(engine.weights, "itself")  # which restarts the learners, as the failure does
            engine.run(tasks, Callbacks())
        alone = engine.weights
    assert all(same_weights(alone, each) for each in on_ranks([1, 1], work, model=model))


def test_a_rank_that_hangs_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.runtime.cpu.stream.SECONDS_TO_WAIT", 0.1)
    ends = threading.Event()

    def work(engine: Engine, ranks: Ranks) -> str:
        if ranks.rank == 1:
            ends.wait(60)
            return ""
        with pytest.raises(TaskError) as raised:
            engine.run(20, Callbacks())
        ends.set()
        return str(raised.value)

    message, _ = on_ranks([1, 1], work)
    assert message == (
        "task 0 failed in operator 'wait ready' on learner 0: CrossbowError: waited 0.1 s for other learners: 1"
    )


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2, base_momentum=0.3)], ids=repr)
def test_ranks_that_are_late_change_nothing(rule: BarrierRule) -> None:
    """Each rank in turn is late by more than a tick."""
    model = replace(MODEL, rule=rule)

    def work(engine: Engine, ranks: Ranks | None) -> dict[str, Array]:
        def stop() -> bool:
            if ranks is not None and engine.tick % 3 == ranks.rank:
                time.sleep(0.003)
            return False

        engine.run(90, Callbacks(stop=stop))
        return engine.weights

    with engine_of(None, 3, model) as engine:
        alone = work(engine, None)
    assert all(same_weights(alone, each) for each in on_ranks([1, 1, 1], work, model=model))
