"""The backend for NVIDIA GPUs: learners on streams, which run asynchronously."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from crossbow.cluster.placement import Placement
from crossbow.cluster.process import join
from crossbow.compile import BatchSource, check_memory
from crossbow.data.bad_examples import BadExamples
from crossbow.data.examples import Examples
from crossbow.data.loader import Loader, batch_tensors
from crossbow.data.order import Order
from crossbow.host_memory import Zeros
from crossbow.kernels.cuda.api import api, gpus
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.transfer import through_host, to_device
from crossbow.runtime.assembly import SLOTS, Assembly, Needs
from crossbow.runtime.backend import TickLearners, batch_source
from crossbow.runtime.coefficients import Formulas
from crossbow.runtime.configuration import SystemConf
from crossbow.runtime.cuda.exchange import AcrossRanks, CudaMeeting, exchanging_learner
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.memory import INPUTS, CudaLearnerMemory, Slots, device_zeros
from crossbow.runtime.cuda.stream import CUBLAS_WORKSPACE, CudaStream, Event, LearnerStreams
from crossbow.runtime.cuda.synchroniser import CudaSynchroniser, NcclCollective, device_tick
from crossbow.runtime.cuda.tick import tick_learner
from crossbow.runtime.cuda.work import task_ranges
from crossbow.runtime.device import cuda_devices
from crossbow.runtime.merging import Merging
from crossbow.runtime.reports import Reports
from crossbow.runtime.task import Finished, Report
from crossbow.synch import Collective, FreeRule
from crossbow.timeline.recorder import Recorder
from crossbow.types import Array, ConfigurationError

T = TypeVar("T")

CONSTANTS = 512 << 10
"""Bytes reserved for each learner, and for a synchroniser: the constants of kernels, coefficients and partial sums."""


class CudaBackend:
    """Implements `Backend`. Under a rule with a barrier, all work is submitted by the scheduler's thread; otherwise
    also by the learners' threads."""

    times_tasks = False  # the learners of a GPU are equally fast
    runs_ahead = True
    shares_memory = False

    def __init__(self, system: SystemConf, *, between_ranks: bool = True) -> None:
        """between_ranks: whether a tick adds up the vectors of all ranks. Raises ConfigurationError."""
        _check_system(system)
        there = len(gpus())
        ranks = join()
        # Each rank of a host uses a different GPU, unless only one GPU is visible to it.
        self.devices = cuda_devices(system.devices, ranks.local_rank % max(1, there))
        if len(self.devices) > 1 or (ranks.several and between_ranks and not ranks.elastic):
            api().nccl  # noqa: B018 - whether it is there
        for device in self.devices:
            if device.number >= there:
                raise ConfigurationError(
                    f"SystemConf: devices: expected GPUs that are there, cuda:0 to cuda:{there - 1}. "
                    f"Received: {device.name!r}"
                )
        self._tf32 = system.precision == "tf32"
        self.library = Cuda(system.dtype, deterministic=system.deterministic, tf32=self._tf32, narrow=system.narrow)
        counts = [device.learners(system.learners_per_device) for device in self.devices]
        self.threads = [0 for _ in self.devices]
        self.device_of = [number for number, count in enumerate(counts) for _ in range(count)]
        self._loader_threads = system.loader_threads
        self.streams: list[CudaStream] = []
        """All streams: the learners' compute and copy streams, and that of a synchroniser or of exchanges."""
        self._learner_streams: list[LearnerStreams] = []
        self._submitting = threading.RLock()
        self._slots: dict[Loader, Slots] = {}

    # Streams

    def open(self, *, synchroniser: bool = False) -> None:
        """Create the learners' streams. The synchroniser creates its own."""
        numbers = [self.devices[device].number for device in self.device_of]
        compute = [
            self._keep(CudaStream(f"learner-{i}", number, libraries=True, tf32=self._tf32))
            for i, number in enumerate(numbers)
        ]
        copies = [self._keep(CudaStream(f"copies-{i}", number)) for i, number in enumerate(numbers)]
        self._learner_streams = [LearnerStreams(*pair, self._submitting) for pair in zip(compute, copies, strict=True)]

    def _keep(self, stream: CudaStream) -> CudaStream:
        self.streams.append(stream)
        return stream

    def call(self, work: Callable[[], T], device: int = 0, *, alone: bool = False) -> T:
        """Run work on the stream of a device's first learner, and wait until it is done."""
        return self._learner_streams[self.device_of.index(device)].compute.call(work)

    def begin(self, work: Callable[[], T]) -> Callable[[], T]:
        """Run work on the first learner's stream, and wait until it is done. Returns a function that returns its
        result."""
        result = self.call(work)
        return lambda: result

    def call_here(self, work: Callable[[], T]) -> T:
        """Run work on the first learner's stream, and wait until it is done."""
        return self.call(work)

    def close(self, timeout: float) -> None:
        """Destroy the streams."""
        with self._submitting:
            for stream in self.streams:
                stream.close(timeout)

    def all_cores(self) -> None:
        """None: work on a GPU can use all of its cores."""

    # Memory

    @property
    def to_device(self) -> Callable[[Array], Array]:
        """The function that copies an array to the current GPU."""
        return to_device

    def zeros(self, device: int) -> Zeros:
        """Return a function that allocates the GPU's memory."""
        return device_zeros(self.devices[device].number)

    def through_host(self, vector: Array, work: Callable[[Array], None]) -> Callable[[], None]:
        """Return a call of `work` with a copy of the vector, which is copied back."""
        return through_host(vector, work)

    def synchronise(self) -> None:
        """Wait until all assignments to the GPUs' arrays are complete."""
        for device in self.devices:
            with on(Stream(device.number, 0)):
                api().runtime.deviceSynchronize()

    def new_loader(
        self,
        examples: Examples,
        order: Order,
        name: str,
        *,
        in_turn: bool,
        bad: BadExamples | None,
        placement: Placement,
        recorder: Recorder,
    ) -> Loader:
        """Return a loader whose slots are copied to the GPUs."""
        threads = self._loader_threads
        count = SLOTS * len(self.device_of) + threads - 1
        slots = Slots(count, batch_tensors(examples, order.batch_size))
        loader = Loader(
            examples,
            order,
            count,
            name=name,
            memory=slots.batches,
            in_turn=in_turn,
            threads=threads,
            bad=bad,
            placement=placement,
            recorder=recorder,
        )
        self._slots[loader] = slots
        return loader

    def batch_source(self, loader: Loader, scale: float) -> BatchSource:
        """Return the source of the slot to which each batch is copied."""
        return batch_source(loader.images[:1], loader.labels[:1], scale)

    def host_memory(self, needs: Needs) -> dict[str, int]:
        """Bytes of the machine's memory, by purpose: only batches."""
        return needs.slots()

    def check_plan(self, needs: Needs, beside: Mapping[str, int]) -> None:
        """Raise ConfigurationError if the plan needs more than a GPU's free memory."""
        for number, device in enumerate(self.devices):
            learners = self.device_of.count(number)
            workspaces = CUBLAS_WORKSPACE * learners
            records = sum(slots.record.nbytes for slots in self._slots.values())
            wanted = {
                **needs.vectors(1, learners),
                "batches": INPUTS * records * learners,
                "cuBLAS": workspaces,
                "constants": CONSTANTS * (learners + 1),
            }
            with on(Stream(device.number, 0)):
                free = api().free_memory()
            # The streams exist already, with cuBLAS's workspaces.
            check_memory(wanted, free + workspaces, f"free memory of {device.name}")

    # Learners

    def _memory(self, assembly: Assembly, number: int) -> CudaLearnerMemory:
        streams, zeros = self._learner_streams[number], self.zeros(self.device_of[number])
        with on(streams.compute.place):
            return CudaLearnerMemory(assembly, streams, self._slots, zeros)

    def tick(
        self,
        assembly: Assembly,
        merging: Merging,
        formulas: Formulas,
        reports: Reports,
        collective: Collective | None,
    ) -> TickLearners:
        """Return learners whose streams wait for the synchroniser's. If a run has one learner, it ends its ticks
        itself."""
        if collective is not None:
            raise ConfigurationError("collective must be None on GPUs, whose vectors NCCL adds up. Received: one")
        learners: list[CudaLearner] = []
        merged = [Event(device.number) for device in self.devices]
        for number, device in enumerate(self.device_of):
            made = assembly, merging, formulas, number, device, self._learner_streams[number]
            learners.append(tick_learner(*made, self._memory(assembly, number), merged[device], reports.put))
        ends = []
        for number, gpu in enumerate(self.devices if merging.learners > 1 else ()):
            stream = self._keep(CudaStream(f"synchroniser-{number}", gpu.number))
            own = [learner for learner, device in zip(learners, self.device_of, strict=True) if device == number]
            ends.append(device_tick(assembly, merging, formulas, number, stream, own, merged[number]))
        nccl = None
        if merging.adds_parts and not assembly.setting.sums_through_host:
            nccl = NcclCollective([end.stream for end in ends], assembly.setting.tick_ranks)
        flags, recorder, ranges = assembly.flags, assembly.setting.recorder, task_ranges(assembly)
        synchroniser = CudaSynchroniser(
            merging.learners, ends, nccl, flags, self._submitting, reports.put_failure, recorder, ranges
        )
        return TickLearners(learners, synchroniser, synchroniser.abandon)

    def meeting(self, assembly: Assembly) -> CudaMeeting:
        """The learners' streams and, across ranks, one stream for all exchanges."""
        rule, flags = assembly.setting.rule, assembly.flags
        streams = [streams.compute for streams in self._learner_streams]
        if assembly.setting.ranks.several:
            stream = self._keep(CudaStream("exchanges", self.devices[0].number))
            between = AcrossRanks(stream, api().pinned(assembly.bases[0].buffers[0].nbytes))
            return CudaMeeting(streams, flags, self._submitting, in_turn=True, across_ranks=between)
        in_turn = not isinstance(rule, FreeRule) or rule.locks
        return CudaMeeting(streams, flags, self._submitting, in_turn=in_turn)

    def exchanging(
        self, assembly: Assembly, formulas: Formulas, number: int, report: Report, finished: Finished
    ) -> CudaLearner:
        """Return a learner whose task ends with its own step."""
        memory, streams = self._memory(assembly, number), self._learner_streams[number]
        return exchanging_learner(assembly, formulas, number, streams, memory, report, finished)


def _check_system(system: SystemConf) -> None:
    """Raise ConfigurationError for settings that do not apply to GPUs."""
    if system.kernels != "auto":
        raise ConfigurationError(
            f"SystemConf: kernels must be 'auto' on GPUs, whose kernels are CUDA's. Received: {system.kernels!r}"
        )
    if system.threads_per_learner is not None:
        raise ConfigurationError(
            "SystemConf: threads_per_learner must be None on GPUs, where a learner is a stream. "
            f"Received: threads_per_learner={system.threads_per_learner}"
        )
