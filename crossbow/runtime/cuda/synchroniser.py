"""The end of a tick on GPUs: merge the learners' vectors into z, then let every learner step.

Every device has a separate stream for it::

    wait ready (the device's learners) ► sum ► all-reduce between the devices of all ranks ► merge ► (merged)
    learner:   wait merged ► step

SMA's merge needs the weights from before the synchronising step, so it runs concurrently with the forward and backward
passes of that task. It is submitted before them, and their graph contains the wait. A rule that sends gradients merges
after them, and a rule that sends new weights after the step.

If ranks may join and leave, their hosts compute the sums instead of NCCL. Then the scheduler's thread waits for the sum
of the device and for the other ranks. The forward and backward passes of the tick have been submitted before, and run
meanwhile.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossbow.cluster.members import Rank
from crossbow.cluster.ranks import Ranks
from crossbow.compile import BoundStep
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.kernels.cuda.ranges import Ranges
from crossbow.kernels.cuda.transfer import through_host
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.coefficients import BoundUpdate, Formulas
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.stream import CudaStream, Event
from crossbow.runtime.cuda.timing import Marks, StreamClock
from crossbow.runtime.cuda.work import Work, new_work, run
from crossbow.runtime.flags import Flags
from crossbow.runtime.mean import Mean
from crossbow.runtime.merging import Merging
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.task import PARITIES, Completed, Failed, Report, Task
from crossbow.synch import HostCollective
from crossbow.synch.collective import check_vectors
from crossbow.timeline.recorder import Recorder, TaskEvent, synchroniser_track
from crossbow.types import Aborted, Array, ConfigurationError, address

SECONDS_TO_END = 2.0
"""Maximum wait for NCCL to end."""


class NcclCollective:
    """All-reduce of one vector per GPU of all ranks, by NCCL, with a communicator for each of this process's GPUs. One
    thread calls all of them as a group."""

    def __init__(self, streams: Sequence[CudaStream], ranks: Ranks) -> None:
        """streams: for each GPU of this process, the stream that computes its vector and uses the sum. All ranks must
        call this. Raises ConfigurationError if ranks share a GPU."""
        self._streams, self.across_ranks = streams, ranks.several
        self._communicators = _new_communicators([stream.device for stream in streams], ranks)

    def close(self) -> None:
        """Destroy the communicators. No sum may be unfinished on any rank."""
        self._end([communicator.destroy for communicator in self._communicators])

    def abort(self) -> None:
        """End the sums, which some ranks may never begin, and then the communicators. All ranks must call this instead
        of `close`."""
        self._end([communicator.abort for communicator in self._communicators])

    def _end(self, calls: Sequence[Callable[[], None]]) -> None:
        """Call these functions with a time limit: NCCL may wait for other ranks of the host, which may wait for this
        rank to report its failure."""
        self._communicators = []
        thread = threading.Thread(target=lambda: [call() for call in calls], name="nccl-end", daemon=True)
        thread.start()
        thread.join(SECONDS_TO_END)

    def all_reduce(self, vectors: Sequence[Array]) -> None:
        """Submit the sum, in the order of the GPUs' streams. The first sum of a size waits until NCCL has connected the
        GPUs."""
        check_vectors(len(self._streams), vectors)
        nccl = api().nccl
        kind = nccl.NCCL_FLOAT32 if vectors[0].dtype == np.float32 else nccl.NCCL_FLOAT64
        nccl.groupStart()
        try:
            for communicator, stream, vector in zip(self._communicators, self._streams, vectors, strict=True):
                place = address(vector)
                communicator.allReduce(place, place, vector.size, kind, nccl.NCCL_SUM, stream.place.pointer)
        finally:
            nccl.groupEnd()  # otherwise later calls would belong to this group, and never run


def _new_communicators(devices: Sequence[int], ranks: Ranks) -> list[Any]:
    """One communicator for each of this process's GPUs, in a group of all ranks' GPUs in rank order. Waits for the
    other ranks."""
    nccl, runtime = api().nccl, api().runtime
    gpus = ranks.gather([runtime.deviceGetPCIBusId(device) for device in devices])
    _check_not_shared(gpus, ranks)
    identity = ranks.agree_on_bytes(nccl.get_unique_id() if ranks.is_first else b"")
    first, count = sum(map(len, gpus[: ranks.rank])), sum(map(len, gpus))
    communicators = []
    nccl.groupStart()
    try:
        for number, device in enumerate(devices, start=first):
            with on(Stream(device, 0)):
                communicators.append(nccl.NcclCommunicator(count, identity, number))
    finally:
        nccl.groupEnd()
    return communicators


def _check_not_shared(gpus: Sequence[Sequence[str]], ranks: Ranks) -> None:
    """Raise ConfigurationError if two ranks have the same GPU of a host. gpus: bus addresses of each rank's GPUs."""
    owners: dict[tuple[str, str], Rank] = {}
    for rank, own in zip(ranks.view.ranks, gpus, strict=True):
        for gpu in own:
            owner = owners.setdefault((rank.host, gpu), rank)
            if owner is not rank:
                raise ConfigurationError(
                    "SystemConf: devices: expected a GPU of its own for each rank, and at most as many ranks on a host "
                    f"as it has GPUs. Received: the GPU {gpu} for {owner} and for {rank}"
                )


@dataclass(frozen=True)
class DeviceTick:
    """The end of a tick on one device."""

    stream: CudaStream
    learners: Sequence[CudaLearner]
    merged: Event
    sum: Mapping[int, Work]
    """Work by the tick's parity, with several devices or ranks only. It includes the sum between hosts."""
    merge: Mapping[int, Work]
    numbers: DeviceNumbers
    means: Sequence[Array]
    """Vectors to add up between devices."""


class CudaSynchroniser:
    """Ends ticks. The scheduler's thread submits all work, and does not wait for it. Implements `Learner`; its tasks
    are the ends of ticks. If a run has one learner, its tasks have done this work, and `devices` is empty."""

    def __init__(
        self,
        number: int,
        devices: Sequence[DeviceTick],
        collective: NcclCollective | None,
        flags: Flags,
        submitting: threading.RLock,
        report: Report,
        recorder: Recorder,
        ranges: Ranges,
    ) -> None:
        """collective: given with several devices, on one or several ranks. submitting: as for `LearnerStreams`."""
        self._recorder, self._ranges = recorder, ranges
        self._clocks: list[StreamClock] = []
        """A clock for each device, created when a tick is first recorded."""
        self.number, self.devices = number, devices
        self.scaling = self.activity = None
        self._flags, self._submitting, self._report = flags, submitting, report
        self._collective = collective

    def submit(self, task: Task) -> None:
        """Submit the end of a tick, after its tasks. Errors are reported, not raised."""
        with self._submitting, self._ranges(f"end of tick {task.tick}"):
            self._submit(task)

    def _submit(self, task: Task) -> None:
        parity = task.parity
        if self._flags.aborted:
            self._report(Failed(task.number, self.number, "wait", None))
            return
        work: Work | None = None
        try:
            marks = self._new_marks()
            for device, mark in zip(self.devices, marks, strict=True):
                with on(device.stream.place):
                    for learner in device.learners:
                        device.stream.wait_for(learner.ready)
                    if mark is not None:
                        mark.mark("wait ready")
                    device.numbers.set(task.coefficients)
                    if device.sum:
                        work = device.sum[parity]
                        run(work, mark)
            if self._collective is not None:
                self._all_reduce(self._collective)
            for number, (device, mark) in enumerate(zip(self.devices, marks, strict=True)):
                with on(device.stream.place):
                    if mark is not None and self._collective is not None:
                        mark.mark("all-reduce")
                    work = device.merge[parity]
                    run(work, mark)
                    device.merged.record(device.stream)
                    if mark is not None:
                        mark.mark("signal merged")
                        self._recorder.task_later(functools.partial(self._recorded, number, task, mark))
        except Exception as error:
            self._flags.raise_abort()
            operator = (work.failed if work else None) or "average"
            self._report(Failed(task.number, self.number, operator, None if isinstance(error, Aborted) else error))
            return
        for device in self.devices:
            for learner in device.learners:
                learner.go_on(parity, device.merged)
        if self._flags.aborted:  # a task of this tick may have failed just now
            self._report(Failed(task.number, self.number, "wait", None))
            return
        self._flags.merged[:] = task.tick
        self._report(Completed(task.number, 0.0, None, 0, self.number))

    def _new_marks(self) -> Sequence[Marks | None]:
        """Begin to time a tick's calls on every device, if they are recorded."""
        if not self._recorder.on:
            return [None] * len(self.devices)
        if not self._clocks:
            self._clocks = [StreamClock(device.stream) for device in self.devices]
        return [Marks(device.stream) for device in self.devices]

    def _recorded(self, device: int, task: Task, marks: Marks) -> TaskEvent:
        """The recorded event of the end of a tick."""
        with on(self.devices[device].stream.place):
            times = marks.times(self._clocks[device])
        begin, end, track = int(times[0]), int(times[-1]), synchroniser_track(device)
        return TaskEvent(track, task.purpose, task.number, task.tick, 0, begin, times, marks.calls, 0, end)

    def _all_reduce(self, collective: NcclCollective) -> None:
        for vectors in zip(*(device.means for device in self.devices), strict=True):
            collective.all_reduce(vectors)

    def abandon(self) -> bool:
        """After a failure, end sums which other ranks may never begin. Returns whether further ticks are possible."""
        if self._collective is None or not self._collective.across_ranks:
            return True
        self._collective.abort()
        return False

    def wait(self, timeout: float) -> bool:
        """Wait until all submitted work is done. Returns whether it was within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        return all(device.stream.wait(max(0.0, deadline - time.monotonic())) for device in self.devices)

    def stop(self, timeout: float) -> None:
        """Do nothing: there is no thread."""

    def close(self, timeout: float) -> None:
        """Destroy streams, graphs and communicators."""
        with self._submitting:
            closed = [device.stream.close(timeout) for device in self.devices]
            if self._collective is not None and all(closed):
                self._collective.close()
            elif self._collective is not None:
                self._collective.abort()
            for device in self.devices:
                for works in (device.sum, device.merge):
                    for work in works.values():
                        work.close()


def device_tick(
    assembly: Assembly,
    merging: Merging,
    formulas: Formulas,
    device: int,
    stream: CudaStream,
    learners: Sequence[CudaLearner],
    merged: Event,
) -> DeviceTick:
    """The end of a tick on a device. device: its number in this rank. learners: the learners of this device. merged:
    event that is recorded after the merge."""
    base = assembly.bases[device]
    replicas = [assembly.replicas[learner.number - merging.first] for learner in learners]
    means = [vector for vector in (base.mean, base.statistics_mean) if vector is not None and vector.size]
    with on(stream.place):
        numbers = DeviceNumbers(formulas.length)
        merge = formulas.over(numbers.array)["merge"]
        sums: dict[int, Work] = {}
        merges: dict[int, Work] = {}
        for parity in PARITIES:
            if merging.adds_parts:
                between = between_hosts(assembly, merging, means) if assembly.setting.sums_through_host else []
                sums[parity] = new_work(assembly, [*sum_steps(merging, replicas, base, parity), *between])
            merges[parity] = new_work(assembly, merge_steps(merging, merge, replicas, base, parity))
        return DeviceTick(stream, learners, merged, sums, merges, numbers, means)


def sum_steps(merging: Merging, replicas: Sequence[Replica], base: BaseModel, parity: int) -> list[BoundStep]:
    """Steps with several devices or ranks: the sum of the contributions of this device's learners, and their part of
    the mean statistics."""
    steps = merging.sum_of_device({**base.vectors(parity), **merging.sent(replicas)}, len(replicas))
    if base.statistics_mean is not None and base.statistics_mean.size:
        steps += merging.mean_statistics(replicas, parity, base.statistics_mean)
    return steps


def between_hosts(assembly: Assembly, merging: Merging, vectors: Sequence[Array]) -> list[BoundStep]:
    """Steps that replace each vector by its sum over all ranks, which the hosts compute."""
    ranks = assembly.setting.tick_ranks
    mean = Mean(merging, ranks, HostCollective(1), assembly.flags, ranks.check_others, through_host)
    return [step for vector in vectors for step in mean.of("", {}, [vector])]


def merge_steps(
    merging: Merging, merge: BoundUpdate, replicas: Sequence[Replica], base: BaseModel, parity: int
) -> list[BoundStep]:
    """Steps that compute the next z and its statistics: from the learners' vectors if one device has all learners,
    otherwise from their sum."""
    arithmetic, single = merging.arithmetic, not merging.adds_parts
    vectors = {**base.vectors(parity), **(merging.sent(replicas) if single else {})}
    whole, following = slice(0, base.buffers[0].size), base.statistics[1 - parity]
    steps: list[BoundStep] = []
    if following.size and single:
        steps += merging.mean_statistics(replicas, parity, following)
    elif following.size and base.statistics_mean is not None:
        steps += arithmetic.combine_statistics({"mean": 1.0}, {"statistics": following, "mean": base.statistics_mean})
    if not single:
        steps += arithmetic.look_through("all-reduce", ("mean",), vectors, whole)
    if merging.clips_mean:
        mean = merging.mean("sent", len(replicas)) if single else {"mean": 1.0}
        clipping, merge = arithmetic.clip_by_norm(merge, mean, vectors)
        steps += clipping
    counted, merge = arithmetic.count("average", merge, vectors)
    return [*steps, *counted, *arithmetic.adjust("average", merge, vectors, whole)]
