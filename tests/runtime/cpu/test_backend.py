"""The CPUs of a run: learners on threads, with a share of the cores, and memory of the host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from crossbow import Dataset, SystemConf
from crossbow.cluster.placement import Placement
from crossbow.data.order import CheckOrder
from crossbow.runtime.assembly import SLOTS
from crossbow.runtime.cpu import backend as module
from crossbow.runtime.cpu.backend import CpuBackend
from crossbow.runtime.device import available_cores
from crossbow.timeline.recorder import Recorder
from crossbow.types import ConfigurationError
from tests.support import SECONDS, context, engine_of

DATA = Dataset((np.zeros((20, 2), np.float32), np.arange(20) % 2))


def backend(**options: Any) -> CpuBackend:
    return CpuBackend(SystemConf(**{"devices": "cpu", "kernels": "reference", "threads_per_learner": 1, **options}))


def test_learners_are_threads_of_their_device() -> None:
    made = backend(devices="cpu:0/2,cpu:1/2", learners_per_device=2)
    assert (made.device_of, made.threads) == ([0, 0, 1, 1], [1, 1])
    before = set(threading.enumerate())
    made.open()
    try:
        names = sorted(thread.name for thread in set(threading.enumerate()) - before)
        assert names == ["learner-0", "learner-1", "learner-2", "learner-3"]
        assert made.call(lambda: threading.current_thread().name) == "learner-0"
    finally:
        made.close(SECONDS)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("threads", "where"), [(1, "MainThread"), (2, "learner-0")])
def test_native_work_for_one_thread_is_done_by_the_caller(
    threads: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossbow.runtime.device.available_cores", lambda: available_cores() * 2)
    made = backend(threads_per_learner=threads)
    made.open()
    try:
        assert made.call_here(lambda: threading.current_thread().name) == where
    finally:
        made.close(SECONDS)


class NotedStream:
    """Notes what it is made with, instead of starting a thread."""

    def __init__(self, name: str, cores: Sequence[int], threads: int, set_threads: Any) -> None:
        self.made = name, tuple(cores), threads
        self.is_closed = False

    def close(self, timeout: float) -> None:
        self.is_closed = True


def test_streams_have_the_cores_of_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.runtime.device.available_cores", lambda: tuple(range(8)))
    monkeypatch.setattr(module, "CpuStream", NotedStream)
    made = backend(devices="cpu:1/2,cpu:0/2", learners_per_device=2, threads_per_learner=2)
    made.open(synchroniser=True)
    upper, lower = (4, 5, 6, 7), (0, 1, 2, 3)
    streams: list[Any] = list(made.streams)
    assert [stream.made for stream in streams] == [
        ("learner-0", upper, 2),
        ("learner-1", upper, 2),
        ("learner-2", lower, 2),
        ("learner-3", lower, 2),
        ("synchroniser", (*lower, *upper), 1),
    ]
    wide = made.all_cores()
    assert wide is not None
    assert wide is made.all_cores()
    streams += wide.streams
    assert streams[-1].made == ("learner-0", upper, 4)
    assert len(streams) == 6
    assert wide.all_cores() is None
    made.close(SECONDS)
    assert all(stream.is_closed for stream in streams)


@pytest.mark.parametrize("precision", ["tf32", "bfloat16", "float16"])
def test_other_precisions_are_for_gpus(precision: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'float32' or 'float64' on the CPU; '{precision}' is for GPUs"):
        backend(precision=precision)


def test_more_threads_than_a_system_starts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "THREADS_AT_MOST", 8)
    most = max(8, sum(len(device.cores) for device in backend().devices))
    backend(learners_per_device=most)
    with pytest.raises(
        ConfigurationError, match=rf"at most {most} threads, of all .*Received: {most + 1}, of {most + 1} le"
    ):
        backend(learners_per_device=most + 1)
    with pytest.raises(ConfigurationError, match=rf"Received: {2 * most}, of {most} learners"):
        backend(learners_per_device=most, threads_per_learner=2)


def test_a_thread_that_cannot_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    made, original, count = backend(learners_per_device=3), module.CpuStream, [0]

    def stream(*arguments: Any) -> Any:
        count[0] += 1
        if count[0] == 3:
            raise RuntimeError("can't start new thread")
        return original(*arguments)

    monkeypatch.setattr(module, "CpuStream", stream)
    with pytest.raises(ConfigurationError, match=r"threads of 3 learners\. Received: can't start new thread, after 2;"):
        made.open()
    made.close(SECONDS)


@pytest.mark.parametrize(("learners", "threads"), [(1, 1), (3, 1), (2, 3)])
def test_a_ring_has_slots_for_learners_and_loaders(learners: int, threads: int) -> None:
    made = backend(learners_per_device=learners, loader_threads=threads)
    given: dict[str, Any] = {"placement": Placement.alone(learners), "recorder": Recorder()}
    loader = made.new_loader(DATA.train, CheckOrder(20, 4), "loader", in_turn=True, bad=None, **given)
    assert len(loader.images) == SLOTS * learners + threads - 1
    source = made.batch_source(loader, 0.5)
    assert (source.images.shape, source.labels.shape) == (loader.images.shape, loader.labels.shape)
    assert source.scale == 0.5


def test_a_plan_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with context() as running:
        engine = engine_of(running)
        needs = engine.parts.needs
        total = sum(engine.backend.host_memory(needs).values())
        monkeypatch.setattr("crossbow.compile.memory.physical_memory", lambda: total + 100)
        engine.backend.check_plan(needs, {"others": 100})
        with pytest.raises(ConfigurationError, match="others"):
            engine.backend.check_plan(needs, {"others": 101})


def test_memory_is_the_hosts_and_changes_at_once() -> None:
    made = backend()
    memory = made.zeros(0)(100)
    assert (memory.nbytes >= 100, memory.any()) == (True, False)
    assert (made.to_device, made.times_tasks, made.runs_ahead) == (None, True, False)
