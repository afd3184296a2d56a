"""The clock tick's parts: flags, slices, coefficients, and the order of a task's steps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import SMA, SSGD, SolverConf
from crossbow.kernels.reference.library import Reference
from crossbow.runtime.coefficients import ANY, Coefficients
from crossbow.runtime.tick import (
    Averaging,
    Flags,
    Place,
    learner_coefficients,
)
from crossbow.solver import Pace
from crossbow.synch import BarrierRule, ModelAveraging, PolyakRuppert
from tests.support import context


def test_flags_start_with_nothing_done() -> None:
    flags = Flags(learners=3, parties=2)
    assert flags.ready.tolist() == flags.contributed.tolist() == [-1, -1, -1]
    assert flags.measured.tolist() == [-1, -1, -1]
    assert flags.merged.tolist() == [-1, -1]
    assert flags.abort.tolist() == [0]


def test_resetting_flags() -> None:
    flags = Flags(learners=2, parties=1)
    flags.abort[0] = flags.ready[1] = 1
    flags.reset(tick=7)
    every = [*flags.ready, *flags.contributed, *flags.measured, *flags.merged, *flags.abort]
    assert every == [6, 6, 6, 6, 6, 6, 6, 0]


@given(st.integers(1, 7), st.integers(0, 500))
def test_the_slices_of_a_device_cover_the_vector_once(learners: int, elements: int) -> None:
    on_device = tuple(range(3, 3 + learners))
    slices = [Place(learner, on_device).slice(elements) for learner in on_device]
    assert [i for part in slices for i in range(elements)[part]] == list(range(elements))
    assert all(part.start % 16 == 0 for part in slices)  # on a cache line, so that learners do not share one


def averaging(rule: BarrierRule, learners: int, devices: int = 1, **solver: float) -> Averaging:
    flags = Flags(learners, learners if devices == 1 else 1)
    dtype = np.dtype(np.float64)
    return Averaging(Reference(dtype), rule, SolverConf(**solver), flags, learners, devices, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2, base_momentum=0.5), SSGD()], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("devices", [1, 2])
def test_coefficients_follow_the_learning_rate(rule: BarrierRule, momentum: float, devices: int) -> None:
    parts = averaging(rule, 2, devices, momentum=momentum, weight_decay=0.1)
    made = learner_coefficients(parts, Place(0, (0, 1) if devices == 1 else (0,)))
    updates = (made.step, made.local, made.merge)
    arrays = [update.numbers[1.0] for update in updates]
    for pace in (Pace(0.5, 0.75), Pace(0.5, 0.75), Pace(0.25, 0.75), Pace(0.25, 0.5)):
        made.set(pace)
        for update, numbers in zip(updates, arrays, strict=True):
            assert update.numbers[1.0] is numbers
            assert numbers.tolist() == update.at(pace).coefficients


@pytest.mark.parametrize("learners", [1, 2, 8])
@pytest.mark.parametrize("alpha", [None, 0.125, 0.1])
def test_coefficients_follow_the_steps_of_alpha(alpha: float | None, learners: int) -> None:
    """z and replicas alike, wherever α begins."""
    for rule in (SMA(alpha=alpha, alpha_steps=((2, 0.05),)), PolyakRuppert(alpha=alpha or 0, alpha_steps=((2, 0.05),))):
        made = Coefficients(rule, SolverConf(), learners)
        for time in (0, 2):
            pace = rule.at(Pace(0.5, 0.0), time, time)
            made.set(pace)
            for update in (made.step, made.merge, made.reply):
                assert update.numbers[1.0].tolist() == update.at(pace).coefficients


def test_the_sum_of_a_single_device_is_part_of_its_merge() -> None:
    update = learner_coefficients(averaging(SMA(alpha=0.25), 2), Place(1, (0, 1))).merge.update
    assert update.steps == (("base_next", {"base": 0.5, "sent0": 0.25, "sent1": 0.25}),)
    update = Coefficients(SMA(alpha=0.25), SolverConf(), 2).merge.update
    assert update.steps == (("base_next", {"base": 0.5, "mean": 0.5}),)


def kinds(
    rule: BarrierRule, devices: str = "cpu", key: str = "synchronise", solver: SolverConf | None = None
) -> list[str]:
    """What a task's steps are, in order: runs of the same kind once."""
    known = (
        "reply",
        "wait",
        "signal",
        "average",
        "sum of the device",
        "optimiser",
        "all-reduce",
        "gradient norm",
        "clip",
    )
    with context(rule=rule, devices=devices, learners=2 if devices == "cpu" else 1, solver=solver) as running:
        parts = running.engine.parts
        learner = parts.members[0].learner if key != "synchroniser" else parts.synchroniser
        assert learner is not None
        names = learner._tasks["synchronise" if key == "synchroniser" else key, 0].calls.names
    steps = [name if name in known else "backward" if "gradient" in name else "forward" for name in names]
    return [step for step, before in zip(steps, ["", *steps], strict=False) if step != before]


def test_sma_averages_beside_the_forward_pass() -> None:
    assert kinds(SMA()) == [
        "signal", "forward", "wait", "average", "signal", "backward", "wait", "optimiser",
    ]  # fmt: skip
    assert kinds(SMA(tau=2), key="local") == ["forward", "backward", "optimiser"]


def test_ssgd_merges_gradients_behind_the_backward_pass() -> None:
    assert kinds(SSGD()) == ["forward", "backward", "signal", "wait", "average", "signal", "wait"]


def test_new_weights_are_sent_behind_the_step() -> None:
    before = ["forward", "backward", "optimiser", "signal", "wait", "average", "signal", "wait"]
    assert kinds(ModelAveraging()) == [*before, "reply"]
    assert kinds(PolyakRuppert()) == before  # the learners keep what they have
    assert kinds(PolyakRuppert(alpha=0.5)) == [*before, "reply"]
    assert kinds(ModelAveraging(tau=2), key="local") == ["forward", "backward", "optimiser"]


def test_several_devices_sum_and_a_party_of_its_own_merges() -> None:
    devices = "cpu:0/2,cpu:1/2"
    assert kinds(SMA(), devices) == [
        "signal", "forward", "wait", "sum of the device", "signal", "backward", "wait", "optimiser",
    ]  # fmt: skip
    assert kinds(SMA(), devices, "synchroniser") == ["wait", "all-reduce", "average", "signal"]


CLIPPING = SolverConf(clip_gradient_norm=1.0)


def test_learners_that_send_weights_clip_their_own_gradient() -> None:
    assert kinds(SMA(), solver=CLIPPING) == [
        "signal", "forward", "wait", "average", "signal", "backward", "wait", "gradient norm", "clip", "optimiser",
    ]  # fmt: skip
    local = ["forward", "backward", "gradient norm", "clip", "optimiser"]
    assert kinds(SMA(tau=2), key="local", solver=CLIPPING) == local
    devices = "cpu:0/2,cpu:1/2"
    assert kinds(SMA(), devices, "synchroniser", CLIPPING) == kinds(SMA(), devices, "synchroniser")


def test_the_mean_of_the_gradients_that_are_sent_is_clipped() -> None:
    """On one device its squares are added up by all learners; else it is the synchroniser that has it as a whole."""
    assert kinds(SSGD(), solver=CLIPPING) == [
        "forward", "backward", "signal", "wait", "gradient norm", "signal", "wait", "clip", "average", "signal", "wait",
    ]  # fmt: skip
    devices = "cpu:0/2,cpu:1/2"
    assert kinds(SSGD(), devices, solver=CLIPPING) == kinds(SSGD(), devices)
    assert kinds(SSGD(), devices, "synchroniser", CLIPPING) == [
        "wait", "all-reduce", "gradient norm", "clip", "average", "signal",
    ]  # fmt: skip


def test_variables_with_another_rate_are_combined_apart() -> None:
    """Three ranges, two rates; the merge of SMA, which has no rate, stays whole."""
    runs = ((slice(0, 32), 1.0), (slice(32, 48), 2.0), (slice(48, 64), 1.0))
    parts = dataclasses.replace(averaging(SMA(), 2, momentum=0.5), runs=runs)
    made = learner_coefficients(parts, Place(0, (0, 1)))
    assert parts.multipliers == (1.0, 2.0)
    assert set(made.step.numbers) == {1.0, 2.0}
    assert set(made.merge.numbers) == {1.0}
    made.set(Pace(0.25, 0.5))
    assert made.step.numbers[1.0].tolist() == made.step.at(Pace(0.25, 0.5)).coefficients
    assert made.step.numbers[2.0].tolist() == made.step.at(Pace(0.5, 0.5)).coefficients

    def calls(place: slice) -> int:
        vectors = {name: np.zeros(64)[place] for name in made.step.update.vectors}
        return len(parts.adjust("step", made.step, vectors, place))

    assert [calls(slice(*ends)) for ends in ((0, 64), (16, 40), (32, 48), (48, 48))] == [3, 2, 1, 0]


def test_the_vectors_of_an_update_do_not_depend_on_the_pace() -> None:
    made = Coefficients(SSGD(), SolverConf(momentum=0.9, weight_decay=0.1), 2)
    assert made.merge.update.assignments == made.merge.at(Pace(0.0, 0.0)).assignments == made.merge.at(ANY).assignments
