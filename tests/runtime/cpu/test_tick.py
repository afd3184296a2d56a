"""The clock tick on the processor: slices, and the order of a task's steps."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crossbow import SMA, SSGD, SolverConf
from crossbow.runtime.cpu.tick import Share
from crossbow.synch import BarrierRule, ModelAveraging, PolyakRuppert
from tests.support import context


@given(st.integers(1, 7), st.integers(0, 500))
def test_the_slices_of_a_device_cover_the_vector_once(learners: int, elements: int) -> None:
    on_device = tuple(range(3, 3 + learners))
    slices = [Share(learner, on_device).slice(elements) for learner in on_device]
    assert [i for part in slices for i in range(elements)[part]] == list(range(elements))
    assert all(part.start % 16 == 0 for part in slices)  # on a cache line, so that learners do not share one


def kinds(
    rule: BarrierRule,
    devices: str = "cpu",
    key: str = "synchronise",
    solver: SolverConf | None = None,
    sum_order: str = "auto",
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
    learners = 2 if devices == "cpu" else 1
    with context(rule=rule, devices=devices, learners=learners, solver=solver, sum_order=sum_order) as running:
        coordination: Any = running.engine.coordination
        learner = coordination.synchroniser if key == "synchroniser" else coordination.learners[0]
        names = learner.tasks["synchronise" if key == "synchroniser" else key, 0].calls.names
    names = [name.split()[0] if name.startswith(("wait", "signal")) else name for name in names]
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
    """In a tree; in a chain, it adds up everything."""
    devices, steps = "cpu:0/2,cpu:1/2", ["wait", "all-reduce", "average", "signal"]
    assert kinds(SMA(), devices, sum_order="tree") == [
        "signal", "forward", "wait", "sum of the device", "signal", "backward", "wait", "optimiser",
    ]  # fmt: skip
    assert kinds(SMA(), devices, "synchroniser", sum_order="tree") == steps
    assert kinds(SMA(), devices) == ["signal", "forward", "backward", "wait", "optimiser"]
    assert kinds(SMA(), devices, "synchroniser") == steps


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
