"""Restarts of learners from the base model, after a failure too."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf, TrainingUnit
from crossbow.cluster.members import Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.runtime import recovery
from crossbow.runtime.copies import WHOLE, Copies, Copy
from crossbow.runtime.flags import Flags
from crossbow.runtime.position import Position
from crossbow.runtime.recovery import PartOfModel, Recovery
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.reports import Reports
from crossbow.runtime.task import Completed
from tests.runtime.fake_parts import FakeCoordination, TickingClock, new_flow
from tests.runtime.test_engine import logistic


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("rule", [SMA(base_momentum=0.5), SSGD()], ids=["sma", "ssgd"])
def test_a_restart_sets_replicas_to_z_and_velocities_to_zero(
    rule: Any, devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = SolverConf(learning_rate=0.1, policy="step", gamma=0.1, step_size=12, momentum=0.9)
    seen = []
    with logistic(rule=rule, devices=devices, solver=solver) as running:
        engine, parts = running.engine, running.engine.parts
        restart = engine.recovery.restart_learners

        def check() -> None:
            z = parts.bases[0].current(engine.tick).copy()
            restart()
            seen.append(engine.tick)
            assert z.any()
            for base in parts.bases:
                assert all((buffer == z).all() for buffer in base.buffers)
                assert base.velocity is None or not base.velocity.any()
            for member in running.engine.members:
                assert member.replica.weights is None or (member.replica.weights == z).all()
                assert member.replica.velocity is None or not member.replica.velocity.any()

        monkeypatch.setattr(engine.recovery, "restart_learners", check)
        k = len(running.engine.members)
        running.train(40, TrainingUnit.TASKS)
        assert seen == [-(-drop // k) for drop in (12, 24, 36)]


# With learners that are none


class FakeBackend:
    """The host's memory."""

    def __init__(self, *, runs_ahead: bool = False) -> None:
        self.runs_ahead, self.synchronised = runs_ahead, 0

    def synchronise(self) -> None:
        self.synchronised += 1


def vector(value: float) -> np.ndarray:
    return np.full(3, value, np.float64)


class Parts:
    """Recovery of two devices with a learner each. z of tick t is in buffer t mod 2, and is 10 + t."""

    def __init__(self, *, barrier: bool = True, runs_ahead: bool = False) -> None:
        reports = Reports(learners=2)
        self.bases = [
            BaseModel((vector(10), vector(11)), vector(5), None, (vector(20), vector(21)), None) for _ in range(2)
        ]
        self.replicas = [
            Replica(vector(1), vector(2), vector(3), (vector(4), vector(4)), vector(6), vector(np.nan))
            for _ in range(2)
        ]
        self.flags, self.position, self.backend = Flags(2, 1), Position(2), FakeBackend(runs_ahead=runs_ahead)
        self.coordination = FakeCoordination(reports, 2)
        self.flow = new_flow(self.coordination, reports)
        setting = SimpleNamespace(barrier=barrier, ranks=Ranks(View(0, (Rank(0, "host"),))), shared=None)
        vectors = {"bases": self.bases, "base": self.bases[0], "outer": None, "replicas": self.replicas, "mirrors": ()}
        assembly: Any = SimpleNamespace(**vectors, part=None, program=None, flags=self.flags, setting=setting)
        self.recovery = Recovery(assembly, self.backend, self.coordination, self.flow, self.position)  # type: ignore[arg-type]

    def recover(self, whole: int) -> bool:
        self.coordination.whole = whole
        return self.recovery.recover()


@pytest.mark.parametrize("tick", [0, 1, 2, 3])
def test_learners_restart_from_the_current_z(tick: int) -> None:
    parts = Parts()
    parts.position.go_to(tick)
    parts.recovery.restart()
    z, observed = 10 + tick % 2, 20 + tick % 2
    for base in parts.bases:
        assert [buffer.tolist() for buffer in (*base.buffers, *base.statistics)] == [[z] * 3] * 2 + [[observed] * 3] * 2
        assert base.velocity is not None
        assert not base.velocity.any()
    for replica in parts.replicas:
        assert replica.weights is not None
        assert replica.velocity is not None
        assert replica.taken is not None
        assert replica.received is not None
        assert replica.weights.tolist() == replica.taken.tolist() == [z] * 3
        assert [each.tolist() for each in replica.statistics] == [[observed] * 3] * 2
        assert not replica.velocity.any()
        assert not replica.received.any()  # which was not finite
    assert parts.backend.synchronised == 1
    assert parts.flow.done == 2 * tick
    assert parts.coordination.log == [("restart", tick)]


def test_recovery_goes_to_the_last_tick_that_is_whole() -> None:
    parts = Parts()
    parts.position.go_to(5)
    parts.flow.restart(7)
    parts.flow._in_flight = 3
    assert parts.recover(whole=3)
    assert parts.position.tick == 3
    assert parts.coordination.log == ["abandon", ("whole ticks of", 7), ("restart", 3)]
    assert (parts.flow.in_flight, parts.flow.done) == (0, 6)
    assert parts.replicas[0].weights.tolist() == [11] * 3  # type: ignore[union-attr]


@pytest.mark.parametrize("lost", ["z", "its statistics"])
def test_a_z_that_is_not_finite_is_left_for_the_previous_one(lost: str) -> None:
    parts = Parts()
    base = parts.bases[0]
    (base.buffers if lost == "z" else base.statistics)[1][2] = np.inf
    assert not parts.recovery.is_finite(3)
    assert parts.recovery.is_finite(2)
    assert parts.recover(whole=3)
    assert parts.position.tick == 2
    assert np.isfinite(base.buffers[1]).all()


def test_whoever_has_z_is_told_that_it_changes() -> None:
    """Training, failures and loading change it; a restart does not."""
    parts = Parts()
    z = [vector(1), vector(2)]
    for change in (parts.recovery.keep, lambda: parts.recover(whole=1), lambda: parts.recovery.set_base(z)):
        before = parts.recovery.base_changes
        change()
        assert parts.recovery.base_changes > before
    assert [buffer.tolist() for buffer in parts.recovery.base] == [[1] * 3, [2] * 3]
    before = parts.recovery.base_changes
    parts.recovery.restart()
    assert parts.recovery.base_changes == before


@pytest.mark.parametrize(
    ("barrier", "runs_ahead", "kept"), [(True, False, False), (False, False, True), (True, True, True)]
)
def test_where_z_may_be_lost_it_is_kept_from_the_start_of_training(barrier: bool, runs_ahead: bool, kept: bool) -> None:
    parts = Parts(barrier=barrier, runs_ahead=runs_ahead)
    parts.position.go_to(1)
    parts.recovery.keep()
    for base in parts.bases:
        for buffer in base.buffers:
            buffer[...] = np.nan
    assert parts.recover(whole=4)
    assert parts.position.tick == (1 if kept else 4)
    assert np.isfinite(parts.bases[0].buffers[0]).all() == kept
    if kept:
        assert parts.bases[1].current(1).tolist() == [11] * 3


def test_learners_that_cannot_go_on_are_not_restarted() -> None:
    parts = Parts()
    parts.coordination.goes_on = False
    assert not parts.recovery.recover()
    assert parts.coordination.log == ["abandon"]


@pytest.mark.parametrize(("slow", "timeouts"), [((), [30, 20]), ((0,), [30]), ((1,), [30, 20])])
def test_all_learners_together_have_some_time_to_end_their_tasks(
    slow: tuple[int, ...], timeouts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty seconds. A look at the clock takes ten."""
    parts, given = Parts(), list[float]()
    monkeypatch.setattr(recovery, "time", TickingClock(10))
    monkeypatch.setattr(recovery, "DRAIN_SECONDS", 40.0)

    def wait(timeout: float, number: int) -> bool:
        given.append(timeout)
        return number not in slow

    for number, learner in enumerate(parts.coordination.learners):
        monkeypatch.setattr(learner, "wait", functools.partial(wait, number=number))
    assert parts.recover(whole=1) == (not slow)
    assert given == timeouts
    assert (("restart", 1) in parts.coordination.log) == (not slow)


COPIES = Copies((Copy(0, 3, 0.5, 7, WHOLE),), 9, 0.25)


@pytest.mark.parametrize(("lost", "copies"), [(True, COPIES), (True, None), (False, COPIES)])
def test_after_a_loss_a_rank_keeps_its_part(lost: bool, copies: Copies | None) -> None:
    """If the coordination has parts, and until the next training."""
    parts = Parts()
    parts.coordination.part, parts.coordination.whole = copies, 1
    parts.flow.restore(3, 0.0, [Completed(5, 0.5, None, 4, 0)])
    assert parts.recovery.recover(lost=lost)
    assert parts.coordination.log[:2] == (["abandon", "keep part"] if lost else ["abandon", ("whole ticks of", 3)])
    expected = PartOfModel(3, (Completed(5, 0.5, None, 4, 0),), *COPIES) if lost and copies is not None else None
    assert parts.recovery.part == expected
    parts.recovery.keep()
    assert parts.recovery.part is None


def test_without_a_learner_that_ends_in_time_nothing_is_restored() -> None:
    parts = Parts()
    parts.coordination.learners[1].is_done = False
    parts.position.go_to(5)
    assert not parts.recover(whole=3)
    assert parts.flags.aborted
    assert parts.position.tick == 5
    assert parts.bases[0].buffers[0].tolist() == [10] * 3


def test_a_base_model_that_is_set_is_where_learners_restart() -> None:
    parts = Parts()
    parts.recovery.set_base([vector(7), vector(8)])
    parts.recovery.restart()
    assert parts.recovery.base[0].tolist() == parts.replicas[1].weights.tolist() == [7] * 3  # type: ignore[union-attr]
    assert parts.recovery.base[1].tolist() == [8] * 3
