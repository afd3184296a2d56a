"""A plan that does not fit into a GPU's free memory is refused before it is taken; and what is taken was planned."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, Dataflow, Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.runtime.cuda import backend
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.stream import CUBLAS_WORKSPACE
from crossbow.runtime.scheduler import Scheduler
from crossbow.synch import SSP, AsynchronousSGD, FreeRule, Gossip, Hogwild, PeerRule, Rule
from crossbow.types import ConfigurationError, Shape
from models.lenet import lenet
from models.resnet import resnet
from tests.combinations import covering, one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.fake_runtime import FakeRuntime
from tests.runtime.cuda.test_training import context

SMALL = 2 * CUBLAS_WORKSPACE + (1 << 20)
"""Bytes of a GPU that has no room for two learners, although their streams fit."""


def test_a_plan_that_does_not_fit_is_refused() -> None:
    with fake_cuda() as fake:
        fake.runtime.total_memory = SMALL
        with pytest.raises(ConfigurationError) as caught:
            context("cuda:0")
        gc.collect()
        assert fake.runtime.memory.held(0) == 0  # neither weights nor the streams' workspaces
    text = str(caught.value)
    assert text.startswith(
        "expected a plan that fits into 68.1 MB of free memory of cuda:0. Received: 68.7 MB, of these"
    )
    for part in ("weights and gradients", "intermediate results", "batches", "cuBLAS", "constants"):
        assert f" for {part}" in text
    assert text.endswith("; lower batch_size or learners_per_device")


def test_one_learner_fewer_fits() -> None:
    with fake_cuda() as fake:
        fake.runtime.total_memory = SMALL
        with context("cuda:0", learners=1) as running:
            running.train(1, TrainingUnit.TASKS)


@pytest.mark.slow
def test_every_gpu_is_asked() -> None:
    """Somebody else has most of the second one."""
    with fake_cuda(2) as fake:
        fake.runtime.total_memory = 2 * SMALL
        with on(Stream(1, 0)):
            taken = api().zeros(SMALL)
        with pytest.raises(ConfigurationError, match=r"68\.1 MB of free memory of cuda:1"):
            context("cuda:0,cuda:1")
        del taken
        with context("cuda:0,cuda:1") as running:
            assert running.engine.parts.setting.learners == 4


def data(shape: Shape) -> Dataset:
    images, labels = np.zeros((24, *shape), np.uint8), np.arange(24) % 3
    return Dataset((images, labels), (images, labels))


RUNS = {
    "clipped S-SGD": (lenet, (1, 28, 28), SSGD(), {"momentum": 0.9, "clip_gradient_norm": 1.0}),
    "base momentum": (lenet, (1, 28, 28), SMA(tau=2, base_momentum=0.5), {}),
    "SMA": (lenet, (1, 28, 28), SMA(), {"momentum": 0.9}),
    "ResNet": (resnet, (3, 32, 32), SMA(), {"momentum": 0.9, "clip_gradient_norm": 1.0}),
}
PLACES = {"one learner": (1, 1), "four learners": (1, 4), "two GPUs": (2, 2)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "shape", "rule", "solver", "devices", "learners"),
    covering(*([pytest.param(*row, id=name) for name, row in rows.items()] for rows in (RUNS, PLACES)), together=1),
)
def test_a_plan_is_what_is_taken(
    build: Callable[[], Dataflow],
    shape: Shape,
    rule: Any,
    solver: dict[str, Any],
    devices: int,
    learners: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[dict[str, int]] = []
    monkeypatch.setattr(backend, "check_memory", lambda needs, memory, of: planned.append(needs))
    with (
        fake_cuda(devices, threads_tell=isinstance(rule, FreeRule | PeerRule)) as fake,
        ExecutionContext(
            [build(), None],
            data=data(shape),
            model=ModelConf(batch_size=4, rule=rule),
            solver=SolverConf(learning_rate=0.01, **solver),
            system=SystemConf(
                devices=",".join(f"cuda:{device}" for device in range(devices)), learners_per_device=learners
            ),
        ) as running,
    ):
        if build is lenet:
            running.train(2 * devices * learners, TrainingUnit.TASKS)
        gc.collect()
        assert len(planned) == devices
        for device, needs in enumerate(planned):
            taken = fake.runtime.memory.held(device)
            assert taken <= sum(needs.values()) <= 1.3 * taken
            libraries = needs.pop("cuBLAS")  # without these, which are most of it
            assert taken - libraries <= sum(needs.values()) <= 1.3 * (taken - libraries)


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize("rule", [AsynchronousSGD(), Gossip(probability=1)], ids=str)
def test_a_plan_without_a_barrier_is_what_is_taken(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_plan_is_what_is_taken(lenet, (1, 28, 28), rule, {"momentum": 0.9}, 1, 2, monkeypatch)


ALLOCATING = ("zeros", "pinned", "eventCreateWithFlags", "streamCreateWithFlags")
WAITING = ("deviceSynchronize", "streamSynchronize")
"""What no thread calls in a tick. The one that trains does not wait for events there, either."""
STALE = AsynchronousSGD(weight="1/staleness")


@pytest.mark.parametrize(
    ("rule", "precision"),
    [
        *covering([SMA(), SMA(tau=2), SSGD()], ["float32", "float16"], together=1),
        (Gossip(probability=1), "float32"),
        *(pytest.param(rule, "float32", marks=pytest.mark.slow) for rule in (STALE, SSP(), Hogwild())),
    ],
    ids=str,
)
def test_when_warm_nothing_is_allocated_and_the_scheduler_waits_for_nothing(
    rule: Any, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits at the end of an epoch, and watchers wait for results, on threads of their own."""
    races = not isinstance(rule, Hogwild)
    allocated, waited = list[str](), list[str]()
    thread = threading.current_thread()

    def count(name: str, calls: list[str], *, everywhere: bool = True) -> None:
        original = getattr(FakeRuntime, name)

        def counted(runtime: FakeRuntime, *arguments: Any) -> Any:
            if everywhere or threading.current_thread() is thread:
                calls.append(name)
            return original(runtime, *arguments)

        monkeypatch.setattr(FakeRuntime, name, counted)

    with (
        fake_cuda(races=races, threads_tell=isinstance(rule, FreeRule | PeerRule)),
        context("cuda:0", rule=rule, system={"precision": precision}) as running,
    ):
        running.train(24, TrainingUnit.TASKS)
        for name in ALLOCATING:
            count(name, allocated)
        for name in WAITING:
            count(name, waited)
        count("eventSynchronize", waited, everywhere=False)
        tick, ticks = Scheduler.run_tick, list[list[str]]()

        def run_tick(scheduler: Scheduler, *arguments: Any) -> bool:
            waited.clear()
            done = tick(scheduler, *arguments)
            ticks.append(list(waited))
            return done

        monkeypatch.setattr(Scheduler, "run_tick", run_tick)
        running.train(48, TrainingUnit.TASKS)
    assert len(ticks) >= 12
    assert (allocated, ticks) == ([], [[]] * len(ticks))


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize(("rule", "kind", "name"), [(SMA(), CudaLearner, "_copy"), (STALE, DeviceNumbers, "send")])
def test_what_is_allocated_in_training_would_be_seen(
    rule: Rule, kind: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(kind, name)

    def allocating(*arguments: Any) -> None:
        api().zeros(16)
        original(*arguments)

    monkeypatch.setattr(kind, name, allocating)
    with pytest.raises(AssertionError, match="zeros"):
        test_when_warm_nothing_is_allocated_and_the_scheduler_waits_for_nothing(rule, "float32", monkeypatch)
