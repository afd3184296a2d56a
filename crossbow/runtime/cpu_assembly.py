"""The assembly of a run on the processor's cores."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.compile import BatchSource, BoundStep, Memory, Program
from crossbow.data.dataset import Examples
from crossbow.data.loader import Loader
from crossbow.data.order import Order
from crossbow.dataflow.graph import losses, measures
from crossbow.kernels import select_library
from crossbow.runtime.assembly import SLOTS, AnyStream, Assembly, Member, batch_source
from crossbow.runtime.coefficients import Coefficients
from crossbow.runtime.device import CpuDevice, cpu_devices
from crossbow.runtime.learner import BoundTask, Learner, TaskKey, bind_task
from crossbow.runtime.replica import BaseModel, Replica, Zeros
from crossbow.runtime.stream import CpuStream
from crossbow.runtime.tick import (
    Averaging,
    Place,
    learner_coefficients,
    local_task,
    new_state,
    synchroniser_task,
    synchronising_task,
)
from crossbow.synch import Collective, HostCollective
from crossbow.types import Array, ConfigurationError, aligned_zeros

THREADS_AT_MOST = 1024
"""Of all learners together, unless there are more cores. What a system cannot start any more, OpenMP answers by
ending the process."""


class CpuAssembly(Assembly):
    """Learners on threads, each with a share of the cores."""

    devices: Sequence[CpuDevice]

    def _choose(self) -> list[int]:
        if self.system.precision not in ("float32", "float64"):
            raise ConfigurationError(
                f"SystemConf: precision must be 'float32' or 'float64' on the CPU; {self.system.precision!r} is for "
                f"GPUs. Received: precision={self.system.precision!r}"
            )
        self.library, self._set_threads = select_library(self.system.kernels, self.dtype, winograd=self.system.winograd)
        self.devices = cpu_devices(self.system.devices)
        counts = [device.learners(self.system.learners_per_device) for device in self.devices]
        self.threads = [
            device.threads(count, self.system.threads_per_learner)
            for device, count in zip(self.devices, counts, strict=True)
        ]
        self._check_threads(counts)
        return counts

    def _check_threads(self, counts: Sequence[int]) -> None:
        """Refuse more threads than can be expected to start."""
        most = max(THREADS_AT_MOST, sum(len(device.cores) for device in self.devices))
        wanted = sum(count * threads for count, threads in zip(counts, self.threads, strict=True))
        if wanted > most:
            raise ConfigurationError(
                f"expected at most {most} threads, of all learners together. Received: {wanted}, of {sum(counts)} "
                "learners; lower learners_per_device or threads_per_learner"
            )

    def _open(self) -> None:
        self.streams = self._cpu_streams = []
        for number, device in enumerate(self.device_of):
            name, cores = f"learner-{number}", self.devices[device].cores
            self._cpu_streams.append(self._new_stream(name, cores, self.threads[device]))

    def _new_stream(self, name: str, cores: Sequence[int], threads: int) -> CpuStream:
        try:
            return CpuStream(name, cores, threads, self._set_threads)
        except RuntimeError as error:  # what Python raises where the system starts no more threads
            raise ConfigurationError(
                f"expected a system that starts the threads of {self.learners} learners. Received: {error}, after "
                f"{len(self._cpu_streams)}; lower learners_per_device"
            ) from error

    @property
    def _compile_on(self) -> AnyStream:
        return self._cpu_streams[0]

    def zeros(self, device: int) -> Zeros:
        return aligned_zeros

    def synchronise(self) -> None:
        pass  # it is there at once

    def _new_loader(self, examples: Examples, order: Order, name: str) -> Loader:
        return Loader(examples, order, SLOTS * self.learners, name=name, in_turn=self.barrier)

    def _batch_source(self, loader: Loader) -> BatchSource:
        return batch_source(loader.images, loader.labels, self.data.scale)

    def _build_members(
        self, averaging: Averaging, replicas: Sequence[Replica], collective: Collective | None
    ) -> tuple[list[Member], Learner | None]:
        members = [self._member(number, averaging, replicas) for number in range(self.learners)]
        if len(self.devices) == 1:
            return members, None
        return members, self._new_synchroniser(averaging, collective or HostCollective(len(self.devices)))

    def _member(self, number: int, averaging: Averaging, replicas: Sequence[Replica]) -> Member:
        device = self.device_of[number]
        on_device = tuple(other for other in range(self.learners) if self.device_of[other] == device)
        place = Place(number, on_device)
        coefficients = learner_coefficients(averaging, place)
        state, arena = new_state(), aligned_zeros(self._arena)
        peers, base = [replicas[other] for other in on_device], self.bases[device]
        tasks: dict[TaskKey, BoundTask] = {}
        for parity in range(2):
            tasks.update(self._bind(averaging, place, peers, base, parity, coefficients, arena, state))
        learner = Learner(number, self._cpu_streams[number], tasks, coefficients, state, self.flags.abort)
        return Member(learner, device, replicas[number], arena, state)

    def _bind(
        self,
        averaging: Averaging,
        place: Place,
        peers: Sequence[Replica],
        base: BaseModel,
        parity: int,
        coefficients: Coefficients,
        arena: Array,
        state: Array,
    ) -> dict[TaskKey, BoundTask]:
        """A learner's task lists for ticks of one parity."""
        own = peers[place.on_device.index(place.learner)]
        weights = base.buffers[parity] if own.weights is None else own.weights
        present, following = own.statistics[parity], own.statistics[1 - parity]
        memory = self._memory(self.loader, arena, state, weights, own.gradient, (present, following))
        parts = self.program.bind(memory, in_blocks=averaging.in_blocks)
        steps = synchronising_task(averaging, place, parts, peers, base, parity, coefficients, state)
        tasks = {("synchronise", parity): bound(self.program, memory, steps)}
        if self.clock.tau > 1:
            memory = self._memory(self.loader, arena, state, weights, own.gradient, (present, present))
            parts = self.program.bind(memory, in_blocks=averaging.in_blocks)
            steps = local_task(averaging, parts, own, coefficients)
            tasks["local", parity] = bound(self.program, memory, steps)
        if self.check_program is not None and self.check_loader is not None:
            observed = base.statistics[parity]
            memory = self._memory(
                self.check_loader, arena, state, base.buffers[parity], own.gradient, (observed, observed)
            )
            tasks["check", parity] = bound(self.check_program, memory, self.check_program.bind(memory).forward)
        return tasks

    def _memory(
        self,
        loader: Loader,
        arena: Array,
        state: Array,
        weights: Array,
        gradient: Array,
        statistics: tuple[Array, Array],
    ) -> Memory:
        vectors = {"weights": weights, "gradient": gradient}
        vectors["statistics"], vectors["statistics_next"] = statistics
        named = {"state": state, "slots": loader.images, "slot_labels": loader.labels}
        named["slot_positions"] = loader.positions
        return Memory(arena, self.program.model, vectors, named, self.program.statistics)

    def _new_synchroniser(self, averaging: Averaging, collective: Collective) -> Learner:
        """The party that merges between devices: a stream of its own, whose task is the tick's."""
        cores = sorted({core for device in self.devices for core in device.cores})
        stream = self._new_stream("synchroniser", cores, 1)
        self._cpu_streams.append(stream)
        rule, keeps = averaging.barrier, bool(averaging.kept)
        state = new_state()
        coefficients = Coefficients(rule, self.solver, self.learners, averaging.multipliers, keeps=keeps)
        tasks = {}
        for parity in range(2):
            steps = synchroniser_task(averaging, collective, self.bases, parity, coefficients, state)
            tasks["synchronise", parity] = bind_task(steps, None, None)
        return Learner(self.learners, stream, tasks, coefficients, state, self.flags.abort)


def bound(program: Program, memory: Memory, steps: Sequence[BoundStep]) -> BoundTask:
    """A task list, with where the program leaves loss and accuracy."""
    loss, measure = losses(program.graph), measures(program.graph)
    return bind_task(
        steps,
        program.output(loss[0].order, memory) if loss else None,
        program.output(measure[0].order, memory) if measure else None,
    )
