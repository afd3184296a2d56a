"""The end of a tick, which the scheduler's thread submits without waiting."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    TrainingUnit,
)
from crossbow.cluster.members import Rank
from crossbow.kernels.cuda.api import api
from crossbow.runtime.cuda import synchroniser
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.runtime.cuda.synchroniser import NcclCollective
from crossbow.runtime.task import Failed
from crossbow.synch import ModelAveraging
from crossbow.types import ConfigurationError, TaskError, address
from tests.cluster.fake_network import FakeNetwork
from tests.combinations import one_in
from tests.kernels.cuda.fake import FakeDriver, fake_cuda
from tests.kernels.cuda.fake_runtime import FakeRuntime
from tests.runtime.cuda.test_training import context
from tests.runtime.fake_parts import TickingClock
from tests.support import engine_of, raising

ALONE = FakeNetwork(1).ranks()[0]


class Counted:
    """The CUDA runtime or driver, which counts the calls of a thread."""

    def __init__(self, runtime: FakeRuntime | FakeDriver, counts: Counter[str]) -> None:
        self._runtime, self._thread, self.counts = runtime, threading.current_thread(), counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._runtime, name)
        if callable(found) and threading.current_thread() is self._thread:
            self.counts[name] += 1
        return found


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize(
    ("rule", "waits", "steps", "events"), [(SMA(), 0, 0, 1), (SSGD(), 1, 0, 2), (ModelAveraging(), 1, 1, 2)]
)
def test_the_calls_that_submit_a_tick(rule: Any, waits: int, steps: int, events: int) -> None:
    """Once all is captured. waits: of a task for the merge, which SMA's graphs have inside; steps: kernels after a
    task's graph; events: that a task records."""
    learners = 3
    with fake_cuda() as cuda, context("cuda:0", learners=learners, rule=rule) as running:
        running.train(4 * learners, TrainingUnit.TASKS)
        done = []
        counts: Counter[str] = Counter()
        cuda.runtime = Counted(cuda.runtime, counts)  # type: ignore[assignment]
        cuda.driver = Counted(cuda.driver, counts)  # type: ignore[assignment]
        for ticks in (2, 4):
            counts.clear()
            running.train(ticks * learners, TrainingUnit.TASKS)
            done.append(counts.copy())
    # A task, its step; and the end of the tick, which waits for each learner, merges, and says so.
    tick = {
        "getDevice": learners * (1 + 1) + 2,
        "streamWaitEvent": learners + learners * waits,
        "memcpyAsync": learners,
        "graphLaunch": learners,
        "launchKernel": learners * steps + 1,
        "eventRecord": learners * events + 1,
    }
    assert done[1] - done[0] == {name: 2 * count for name, count in tick.items()}


@pytest.mark.slow
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_the_calls_that_submit_a_task_of_a_learner_alone(rule: Any) -> None:
    with fake_cuda() as cuda, context("cuda:0", learners=1, rule=rule) as running:
        running.train(4, TrainingUnit.TASKS)
        done = []
        counts: Counter[str] = Counter()
        cuda.runtime = Counted(cuda.runtime, counts)  # type: ignore[assignment]
        cuda.driver = Counted(cuda.driver, counts)  # type: ignore[assignment]
        for tasks in (2, 6):
            counts.clear()
            running.train(tasks, TrainingUnit.TASKS)
            done.append(counts.copy())
    calls = ("getDevice", "memcpyAsync", "graphLaunch", "eventRecord")
    assert done[1] - done[0] == dict.fromkeys(calls, 4)


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["cuda:0", "cuda:0,cuda:1"])
def test_no_graph_outlives_the_context(devices: str) -> None:
    clipped = {"clip_gradient_norm": 1.0}  # the end of a tick is then long enough for a graph
    with fake_cuda(2) as cuda:
        with context(devices, rule=SSGD(), **clipped) as running:
            running.train(8 * len(running.engine.members), TrainingUnit.TASKS)
            assert cuda.runtime._executables
        assert not cuda.runtime._executables


@pytest.mark.slow
def test_after_a_failure_no_tick_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(), context("cuda:0") as running:
        running.train(4, TrainingUnit.TASKS)
        engine = engine_of(running)
        flags, reports = engine.parts.flags, list[Any]()
        synchroniser: Any = engine.coordination.synchroniser  # type: ignore[attr-defined]
        monkeypatch.setattr(synchroniser, "_report", reports.append)
        monkeypatch.setattr(synchroniser, "_new_marks", raising(AssertionError("something is submitted")))
        flags.raise_abort()
        synchroniser.submit(SimpleNamespace(number=7, tick=2, parity=0))
        flags.reset(2)
    assert reports == [Failed(7, synchroniser.number, "wait", None)]


class Communicator:
    """One of NCCL's, which notes what it adds up."""

    def __init__(self, number: int, log: list[Any]) -> None:
        self.number, self.log, self.error = number, log, None

    def allReduce(self, *arguments: Any) -> None:  # noqa: N802 - NCCL's name
        if self.error is not None:
            raise self.error
        self.log.append((self.number, *arguments))

    def destroy(self) -> None:
        self.log.append((self.number, "destroyed"))


def test_all_communicators_are_called_as_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group ends also after an error: later calls would belong to it otherwise."""
    log: list[Any] = []
    with fake_cuda(2):
        nccl = api().nccl
        made: list[Any] = []

        def new(count: int, identity: bytes, number: int) -> Communicator:
            assert (count, identity, number) == (2, b"the group", len(made))
            made.append(Communicator(number, log))
            return made[-1]  # type: ignore[no-any-return]

        monkeypatch.setattr(nccl, "get_unique_id", lambda: b"the group")
        monkeypatch.setattr(nccl, "NcclCommunicator", new)
        monkeypatch.setattr(nccl, "groupStart", lambda: log.append("start"))
        monkeypatch.setattr(nccl, "groupEnd", lambda: log.append("end"))
        streams = [CudaStream(f"s{number}", number) for number in range(2)]
        collective = NcclCollective(streams, ALONE)
        assert log == ["start", "end"]
        log.clear()
        vectors = [np.zeros(3, np.float64), np.zeros(3, np.float64)]
        collective.all_reduce(vectors)
        assert log[0] == "start"
        assert log[-1] == "end"
        for number, call in enumerate(log[1:-1]):
            place = address(vectors[number])
            assert call == (number, place, place, 3, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, streams[number].place.pointer)
        log.clear()
        made[1].error = RuntimeError("no luck")
        with pytest.raises(RuntimeError):
            collective.all_reduce([vector.astype(np.float32) for vector in vectors])
        assert log[-1] == "end"
        assert log[1][4] == nccl.NCCL_FLOAT32
        log.clear()
        collective.close()
        collective.close()
        assert log == [(0, "destroyed"), (1, "destroyed")]
        for stream in streams:
            stream.close()


def test_vectors_of_several_gpus_are_checked() -> None:
    with fake_cuda(2):
        streams = [CudaStream(f"s{number}", number) for number in range(2)]
        collective = NcclCollective(streams, ALONE)
        with pytest.raises(ValueError, match="expected"):
            collective.all_reduce([np.zeros(3)])
        collective.close()
        for stream in streams:
            stream.close()


@pytest.mark.parametrize(("busy", "timeouts"), [((), [3, 1, 0]), ((0,), [3]), ((1,), [3, 1])])
def test_all_devices_together_have_some_time(
    busy: tuple[int, ...], timeouts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seconds. A look at the clock takes two."""
    given: list[float] = []

    def wait(timeout: float, number: int) -> bool:
        given.append(timeout)
        return number not in busy

    monkeypatch.setattr(synchroniser, "time", TickingClock(2))
    devices = [SimpleNamespace(stream=SimpleNamespace(wait=partial(wait, number=number))) for number in range(3)]
    made: Any = SimpleNamespace(devices=devices)
    assert synchroniser.CudaSynchroniser.wait(made, 5) == (not busy)
    assert given == timeouts


@pytest.mark.slow
@pytest.mark.parametrize("failed", ["", "clip"])
def test_a_failure_of_a_merge_is_that_of_the_tick(failed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the operator that failed, if that is known, and training can go on."""

    def fail(work: Any, marks: Any) -> None:
        work.failed = failed
        raise RuntimeError("no luck")

    with fake_cuda(), context("cuda:0") as running:
        running.train(2, TrainingUnit.TASKS)
        with monkeypatch.context() as patch:
            patch.setattr(synchroniser, "run", fail)
            with pytest.raises(TaskError, match=rf"failed in operator '{failed or 'average'}'.*RuntimeError: no luck"):
                running.train(2, TrainingUnit.TASKS)
        assert running.engine.tasks == 2
        running.train(2, TrainingUnit.TASKS)
        assert running.engine.tasks == 4


@pytest.mark.parametrize(("across_ranks", "goes_on"), [(None, True), (False, True), (True, False)])
def test_after_a_failure_no_rank_waits_for_a_sum(across_ranks: bool | None, goes_on: bool) -> None:
    aborted: list[bool] = []
    collective = SimpleNamespace(across_ranks=across_ranks, abort=lambda: aborted.append(True))
    made: Any = SimpleNamespace(_collective=None if across_ranks is None else collective)
    assert synchroniser.CudaSynchroniser.abandon(made) == goes_on
    assert aborted == [True] * (not goes_on)


@pytest.mark.parametrize(
    ("hosts", "gpus", "shared"),
    [
        ("aa", [["0"], ["1"]], False),
        ("ab", [["0"], ["0"]], False),  # of different hosts
        ("aa", [["0"], ["0"]], True),
        ("aba", [["0", "1"], ["0"], ["2", "1"]], True),
    ],
)
def test_every_rank_has_gpus_of_its_own(hosts: str, gpus: list[list[str]], shared: bool) -> None:
    members = tuple(Rank(number, host) for number, host in enumerate(hosts))
    ranks: Any = SimpleNamespace(view=SimpleNamespace(ranks=members))
    expected = rf"Received: the GPU {gpus[-1][-1]} for rank 0 .* and for rank {len(hosts) - 1} "
    with pytest.raises(ConfigurationError, match=expected) if shared else contextlib.nullcontext():
        synchroniser._check_not_shared(gpus, ranks)
