"""Sizes that no machine has room for: refused in words, before anything is allocated, and nothing is left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest

from crossbow import SMA, SSGD, Dataset, GraphError, SolverConf
from crossbow.compile import compiler, memory
from crossbow.conf import configuration
from crossbow.data import synthetic
from crossbow.host_memory import physical_memory
from crossbow.ops import LRN, Conv, DataTransform, Dropout, InnerProduct, Kernel, Pool
from crossbow.runtime.cpu import backend
from crossbow.runtime.cpu.stream import CpuStream
from crossbow.types import ConfigurationError, DataError, bytes_text
from models import convnet
from tests.support import KERNELS, Probe, context, perceptron, pictures, training

HUGE = 10**30


def refused(*middle: Kernel, data: Dataset | None = None, **options: Any) -> str:
    """What is said of a network that cannot be, in little of the processor's time."""
    before, start = set(threading.enumerate()), time.process_time()
    network = training(*middle, InnerProduct(number_of_outputs=3))
    with pytest.raises((GraphError, ConfigurationError)) as caught:
        context(network, data=data or pictures(), **options)
    assert time.process_time() - start < 5
    assert not set(threading.enumerate()) - before
    return str(caught.value)


# Operators


@KERNELS
@pytest.mark.parametrize(
    ("kernel", "received"),
    [
        (Conv(number_of_outputs=2, kernel_size=3, padding=10**12), "padding=1000000000000"),
        (Conv(number_of_outputs=2, kernel_size=3, padding=((0, 0), (0, 2**31))), "padding=((0, 0), (0, 2147483648))"),
        (Conv(number_of_outputs=10**12), "number_of_outputs=1000000000000"),
        (Conv(number_of_outputs=2, stride=2**40), "stride=1099511627776"),
        (Conv(number_of_outputs=2, stride=HUGE), f"stride={HUGE}"),
        (Conv(number_of_outputs=2, stride=(1, 2**31), dilation=2**31), "stride=(1, 2147483648), dilation=2147483648"),
        (Pool(stride=2**40), "stride=1099511627776"),
        (LRN(size=10**20), f"size={10**20}"),
        (DataTransform(padding=HUGE), f"padding={HUGE}"),
        (InnerProduct(number_of_outputs=10**11), "number_of_outputs=100000000000"),
        (InnerProduct(number_of_outputs=10**12), "number_of_outputs=1000000000000"),
    ],
    ids=repr,
)
def test_integers_that_no_library_can_count(kernel: Kernel, received: str, kernels: str) -> None:
    name = type(kernel).__name__
    assert refused(kernel, kernels=kernels) == (
        f"node '{name}0' ({name}): expected integers below 2**31. Received: {received}"
    )


def test_what_is_no_size_may_be_large() -> None:
    """Numbers that are multiplied with, and the integers of operators in array-module code."""

    @configuration
    class Seeded(Probe):
        seed: int = 2**40

    transform = DataTransform(mean=10**12, scale=1e-12)
    with context(
        training(transform, Seeded(action=lambda *_: None), InnerProduct(number_of_outputs=3)), data=pictures()
    ) as running:
        assert running.train(1).stopped == "count"


@KERNELS
def test_dimensions_that_no_library_can_count(kernels: str) -> None:
    text = refused(Conv(number_of_outputs=2, kernel_size=3, padding=10**6), kernels=kernels)
    assert "node 'InnerProduct1' (InnerProduct): expected dimensions below 2**31" in text
    assert "Received: 'weights' of shape (3, 8000048000072)" in text


@KERNELS
def test_tensors_larger_than_memory(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "physical_memory", lambda: 10**9)
    wide = InnerProduct(number_of_outputs=10**8)
    assert refused(wide, kernels=kernels) == (
        "2 faults in the graph:\n"
        "node 'InnerProduct0' (InnerProduct): expected tensors that fit into 1.0 GB of memory. "
        "Received: an output of shape (4, 100000000), 1.6 GB\n"
        "node 'InnerProduct1' (InnerProduct): expected tensors that fit into 1.0 GB of memory. "
        "Received: 'weights' of shape (3, 100000000), 1.2 GB"
    )


# The plan


def needed(**options: Any) -> tuple[int, dict[str, int]]:
    """Bytes of all that a context's assembly holds, and what was counted for it."""
    counted: list[dict[str, int]] = []
    before = backend.check_memory
    backend.check_memory = counted.append  # type: ignore[assignment]
    try:
        with context(**options) as running:
            parts = running.engine.parts
            vectors = [vector for base in parts.bases for vector in (*base.buffers, base.velocity, base.mean)]
            for member in running.engine.members:
                vectors += [member.replica.weights, member.replica.gradient, member.replica.velocity]
            vectors += [np.empty(parts.needs.arena, np.uint8)] * len(running.engine.members)
            for loader in filter(None, (parts.training.loader, parts.check.loader)):
                vectors += [loader.images, loader.labels, loader.positions]
            return sum(vector.nbytes for vector in vectors if vector is not None), counted[-1]
    finally:
        backend.check_memory = before


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rule", [SMA(), SMA(base_momentum=0.5), SSGD()], ids=str)
def test_all_is_counted_that_the_context_holds(rule: Any, momentum: float, devices: str) -> None:
    solver = SolverConf(momentum=momentum)
    for learners in (1, 3):
        held, counted = needed(rule=rule, solver=solver, devices=devices, learners=learners)
        assert sum(counted.values()) == held


def test_a_plan_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    _, counted = needed(learners=2)
    total = sum(counted.values())
    monkeypatch.setattr(memory, "physical_memory", lambda: total)
    with context(learners=2) as running:
        assert running.test().examples == 13
    monkeypatch.setattr(memory, "physical_memory", lambda: total - 1)
    before = set(threading.enumerate())
    with pytest.raises(ConfigurationError) as caught:
        context(learners=2)
    parts = ", ".join(f"{bytes_text(nbytes)} for {name}" for name, nbytes in counted.items())
    assert str(caught.value) == (
        f"expected a plan that fits into {bytes_text(total - 1)} of memory. Received: {bytes_text(total)}, "
        f"of these {parts}; lower batch_size or learners_per_device"
    )
    assert not set(threading.enumerate()) - before


def test_slots_that_do_not_fit_are_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> NoReturn:
        raise AssertionError("too late")

    monkeypatch.setattr(memory, "physical_memory", lambda: 10)
    monkeypatch.setattr(backend, "Loader", fail)
    assert "for batches that wait" in refused()


def test_the_machine_says_how_much_memory_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2**28 < physical_memory() < 2**60

    def unknown(name: str) -> NoReturn:
        raise ValueError(f"unrecognized configuration name {name}")

    monkeypatch.setattr("os.sysconf", unknown)
    assert physical_memory() > 2**60


# Learners and threads


@pytest.mark.parametrize("learners", [1100, 2_000_000, 10**9, HUGE])
def test_too_many_learners(learners: int) -> None:
    most = max(1024, len(backend.cpu_devices(["cpu"])[0].cores))
    if learners <= most:
        pytest.skip("a machine with so many cores")
    assert refused(learners=learners) == (
        f"expected at most {most} threads, of all learners together. Received: {learners}, of {learners} learners; "
        "lower learners_per_device or threads_per_learner"
    )


def test_too_many_threads_of_a_learner() -> None:
    cores = len(backend.cpu_devices(["cpu"])[0].cores)
    assert refused(threads=100_000) == (
        f"SystemConf: threads_per_learner must be at most the number of cores of 'cpu', {cores}. "
        "Received: threads_per_learner=100000"
    )


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("started", [0, 2, 4])
def test_threads_that_the_system_does_not_start(started: int, devices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    start = threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if thread.name.startswith(("learner", "synchroniser")) and (made.append(thread.name) or len(made) > started):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    if devices == "cpu" and started == 4:
        pytest.skip("there are no more")
    learners = 4 // (devices.count(",") + 1)
    assert refused(learners=learners, devices=devices) == (
        "expected a system that starts the threads of 4 learners. Received: can't start new thread, "
        f"after {started}; lower learners_per_device"
    )


def test_a_stream_that_fails_otherwise_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: CpuStream, *arguments: Any) -> None:
        raise OSError("no such core")

    monkeypatch.setattr(CpuStream, "__init__", broken)
    with pytest.raises(OSError, match="no such core"):
        context(perceptron(Dropout()))


# Data, and scripts


@pytest.mark.parametrize(
    "sizes",
    [
        {"image_shape": (3, 200_000, 200_000)},
        {"image_shape": (3, 8, 8), "number_of_classes": 10**12},
        {"image_shape": (3, 8, 8), "training": HUGE},
        {"image_shape": (3, 8, 8), "check": 10**15},
        {"image_shape": tuple(np.array([2**31, 2**31, 2**31]))},
    ],
    ids=str,
)
def test_synthetic_images_that_do_not_fit(sizes: dict[str, Any]) -> None:
    expected = r"expected images and patterns of classes that fit into .* of memory\. Received: .*, with image_shape="
    with pytest.raises(DataError, match=expected):
        synthetic(**sizes)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--dataset synthetic --image-shape 3,200000,200000", "image_shape=(3, 200000, 200000)"),
        ("--dataset synthetic --classes 1000000000000", "number_of_classes=1000000000000"),
        ("--dataset synthetic --learners 2000000", "expected at most"),
        ("--dataset synthetic --threads-per-learner 100000", "threads_per_learner must be at most"),
        ("--dataset synthetic --tau 1000 --epochs 1", "expected at most 16 tasks in a tick"),
    ],
)
def test_scripts_say_it_in_a_sentence(
    arguments: str, text: str, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main: Callable[[list[str]], int] = convnet.main
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m models.convnet: error: expected") or "error: SystemConf:" in error
    assert text in error
    assert error.count("\n") == 1
