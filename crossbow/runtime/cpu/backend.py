"""The backend for CPUs: learners on threads, each with a share of the cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from crossbow.cluster.placement import Placement
from crossbow.compile import BatchSource, check_memory
from crossbow.data.bad_examples import BadExamples
from crossbow.data.examples import Examples
from crossbow.data.loader import Loader
from crossbow.data.order import Order
from crossbow.host_memory import Zeros, aligned_zeros
from crossbow.kernels import select_library
from crossbow.kernels.cpu.threads import one_thread
from crossbow.kernels.reference.library import Reference
from crossbow.runtime.assembly import SLOTS, Assembly, Needs
from crossbow.runtime.backend import TickLearners, batch_source
from crossbow.runtime.coefficients import Formulas
from crossbow.runtime.configuration import SystemConf
from crossbow.runtime.cpu.exchange import CpuMeeting, exchanging_learner
from crossbow.runtime.cpu.learner import CpuLearner
from crossbow.runtime.cpu.stream import CpuStream
from crossbow.runtime.cpu.synchroniser import new_synchroniser
from crossbow.runtime.cpu.tick import Share, tick_learner
from crossbow.runtime.device import CpuDevice, cpu_devices, thread_cores
from crossbow.runtime.merging import Merging
from crossbow.runtime.reports import Reports
from crossbow.runtime.task import Finished, Report
from crossbow.synch import Collective, HostCollective
from crossbow.timeline.recorder import Recorder
from crossbow.types import Array, ConfigurationError

T = TypeVar("T")

THREADS_AT_MOST = 1024
"""Maximum number of threads of all learners together, unless there are more cores. If a system cannot start another
thread, OpenMP ends the process."""


class CpuBackend:
    """Implements `Backend`."""

    to_device = None
    times_tasks = True
    runs_ahead = False

    def __init__(self, system: SystemConf) -> None:
        """Raises ConfigurationError."""
        if system.precision not in ("float32", "float64"):
            raise ConfigurationError(
                f"SystemConf: precision must be 'float32' or 'float64' on the CPU; {system.precision!r} is for "
                f"GPUs. Received: precision={system.precision!r}"
            )
        if system.nvtx:
            raise ConfigurationError("SystemConf: nvtx must be False on the CPU. Received: nvtx=True")
        self.library, self._set_threads = select_library(system.kernels, system.dtype, winograd=system.winograd)
        self.devices: Sequence[CpuDevice] = cpu_devices(system.devices)
        counts = [device.learners(system.learners_per_device) for device in self.devices]
        self.threads = [
            device.threads(count, system.threads_per_learner)
            for device, count in zip(self.devices, counts, strict=True)
        ]
        self._check_threads(counts)
        self.device_of = [number for number, count in enumerate(counts) for _ in range(count)]
        self._system, self._loader_threads = system, system.loader_threads
        self._wide: CpuBackend | None = None
        self.streams: list[CpuStream] = []
        """The streams of the learners and, last, of the synchroniser."""

    def _check_threads(self, counts: Sequence[int]) -> None:
        """Raise ConfigurationError if there are more threads than a system is likely to start."""
        most = max(THREADS_AT_MOST, sum(len(device.cores) for device in self.devices))
        wanted = sum(count * threads for count, threads in zip(counts, self.threads, strict=True))
        if wanted > most:
            raise ConfigurationError(
                f"expected at most {most} threads, of all learners together. Received: {wanted}, of {sum(counts)} "
                "learners; lower learners_per_device or threads_per_learner"
            )

    @property
    def shares_memory(self) -> bool:
        """True for one device, with compiled kernels: only these write flags in an order that is visible to other
        processes."""
        return len(self.devices) == 1 and not isinstance(self.library, Reference)

    # Streams

    def open(self, *, synchroniser: bool = False) -> None:
        """Start the threads of the learners and of a synchroniser. Raises ConfigurationError."""
        for number, device in enumerate(self.device_of):
            self._new_stream(f"learner-{number}", thread_cores(self.devices[device]), self.threads[device])
        if synchroniser:
            cores = sorted({core for device in self.devices for core in thread_cores(device)})
            self._new_stream("synchroniser", cores, 1)

    def _new_stream(self, name: str, cores: Sequence[int], threads: int) -> None:
        try:
            stream = CpuStream(name, cores, threads, self._set_threads)
        except RuntimeError as error:  # Python raises this if the system cannot start another thread
            raise ConfigurationError(
                f"expected a system that starts the threads of {len(self.device_of)} learners. Received: {error}, "
                f"after {len(self.streams)}; lower learners_per_device"
            ) from error
        self.streams.append(stream)

    def call(self, work: Callable[[], T], device: int = 0, *, alone: bool = False) -> T:
        """Call `work` on the thread of a device's first learner, and return its result."""

        def with_one_thread() -> T:
            with one_thread():
                return work()

        return self.streams[self.device_of.index(device)].call(with_one_thread if alone else work)

    def begin(self, work: Callable[[], T]) -> Callable[[], T]:
        """Submit `work` to the first learner's thread. Returns a function that waits for its result."""
        return self.streams[0].begin(work)

    def call_here(self, work: Callable[[], T]) -> T:
        """Run native work on the calling thread if learners have one thread, else on the first learner's."""
        if self.threads[0] > 1:
            return self.call(work)  # otherwise each calling thread would create another team of threads
        with one_thread():
            return work()

    def all_cores(self) -> CpuBackend | None:
        """A backend with one stream of all cores of the first device, made on first use; None if the streams of this
        backend have all cores."""
        device = self.devices[0]
        if self._wide is None and self.threads[0] < len(device.cores):
            system = replace(self._system, devices=device.name, learners_per_device=1)
            self._wide = CpuBackend(replace(system, threads_per_learner=len(device.cores)))
            self._wide.open()
        return self._wide

    def close(self, timeout: float) -> None:
        """End the threads, each after its current task."""
        if self._wide is not None:
            self._wide.close(timeout)
        for stream in self.streams:
            stream.close(timeout)

    # Memory

    def zeros(self, device: int) -> Zeros:
        """The host's memory."""
        return aligned_zeros

    def through_host(self, vector: Array, work: Callable[[Array], None]) -> Callable[[], None]:
        """Return a call of `work` with the vector itself."""
        return lambda: work(vector)

    def synchronise(self) -> None:
        """Do nothing: assignments take effect at once."""

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
        """Return a loader whose slots the learners read directly."""
        threads = self._loader_threads
        count = SLOTS * len(self.device_of) + threads - 1
        return Loader(
            examples,
            order,
            count,
            name=name,
            in_turn=in_turn,
            threads=threads,
            bad=bad,
            placement=placement,
            recorder=recorder,
        )

    def batch_source(self, loader: Loader, scale: float) -> BatchSource:
        """Return the source of all slots of the loader."""
        return batch_source(loader.images, loader.labels, scale)

    def check_plan(self, needs: Needs, beside: Mapping[str, int]) -> None:
        """Raise ConfigurationError if the plan needs more than the machine's memory."""
        check_memory({**self.host_memory(needs), **beside})

    def host_memory(self, needs: Needs) -> dict[str, int]:
        """Bytes of the machine's memory, by purpose."""
        return {**needs.all_vectors(), **needs.slots()}

    # Learners

    def tick(
        self,
        assembly: Assembly,
        merging: Merging,
        formulas: Formulas,
        reports: Reports,
        collective: Collective | None,
    ) -> TickLearners:
        """Return learners whose task lists wait for each other and, for several devices, a synchroniser."""
        learners: list[CpuLearner] = []
        first, of_all = assembly.setting.placement.first, len(assembly.all_replicas)
        for learner, device in enumerate(self.device_of):
            if of_all:
                share = Share(first + learner, tuple(range(of_all)))
            else:
                share = Share(learner, tuple(other for other, of in enumerate(self.device_of) if of == device))
            numbers, stream = (first + learner, device), self.streams[learner]
            learners.append(tick_learner(assembly, merging, formulas, share, *numbers, stream, reports.put))
        if not merging.adds_parts:
            return TickLearners(learners, None)
        stream, between = self.streams[-1], collective or HostCollective(len(self.devices))
        report = reports.put_failure
        return TickLearners(learners, new_synchroniser(assembly, merging, formulas, stream, report, between))

    def meeting(self, assembly: Assembly) -> CpuMeeting:
        """The learners' own threads."""
        return CpuMeeting()

    def exchanging(
        self, assembly: Assembly, formulas: Formulas, number: int, report: Report, finished: Finished
    ) -> CpuLearner:
        """Return a learner whose task ends with its own step."""
        return exchanging_learner(assembly, formulas, number, self.streams[number], report, finished)
