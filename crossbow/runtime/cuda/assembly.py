"""The assembly of a run on NVIDIA GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from crossbow.compile import BatchSource, BoundStep, Memory, Program, check_memory
from crossbow.data.dataset import Examples
from crossbow.data.loader import Loader, batch_tensors
from crossbow.data.order import Order
from crossbow.dataflow.graph import losses, measures
from crossbow.kernels.cuda.api import api, gpus
from crossbow.kernels.cuda.engine import store_results
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.transfer import to_device
from crossbow.runtime.assembly import SLOTS, AnyStream, Assembly, Member, batch_source
from crossbow.runtime.coefficients import Coefficients
from crossbow.runtime.cuda.coefficients import DeviceCoefficients
from crossbow.runtime.cuda.collective import NcclCollective
from crossbow.runtime.cuda.graph import Work
from crossbow.runtime.cuda.learner import CudaLearner, Input, Task, TaskKey
from crossbow.runtime.cuda.record import Slots
from crossbow.runtime.cuda.stream import CUBLAS_WORKSPACE, CudaStream, Event
from crossbow.runtime.cuda.synchroniser import CudaSynchroniser, DeviceTick
from crossbow.runtime.cuda.tick import merge_steps, sum_steps
from crossbow.runtime.device import CudaDevice, cuda_devices
from crossbow.runtime.replica import BaseModel, Replica, Zeros
from crossbow.runtime.tick import Averaging
from crossbow.synch import Collective
from crossbow.types import Array, ConfigurationError

PARITIES = (0, 1)
CONSTANTS = 512 << 10
"""Bytes that are put by for each learner, and for a synchroniser: constants of kernels, coefficients, partial sums."""


class CudaAssembly(Assembly):
    """Learners on streams of GPUs. Under a rule with a barrier everything is submitted from the thread that trains."""

    devices: Sequence[CudaDevice]
    runs_ahead = True
    _synchroniser: CudaSynchroniser | None = None

    # What devices differ in

    def _choose(self) -> list[int]:
        self._submitting = threading.RLock()
        self._slots: dict[Loader, Slots] = {}
        self.devices = cuda_devices(self.system.devices)
        self._check_system()
        if len(self.devices) > 1:
            api().nccl  # noqa: B018 - whether it is there
        there = len(gpus())
        for device in self.devices:
            if device.number >= there:
                raise ConfigurationError(
                    f"SystemConf: devices: expected GPUs that are there, cuda:0 to cuda:{there - 1}. "
                    f"Received: {device.name!r}"
                )
        self._tf32 = self.system.precision == "tf32"
        self.library = Cuda(
            self.dtype, deterministic=self.system.deterministic, tf32=self._tf32, narrow=self.system.narrow
        )
        counts = [device.learners(self.system.learners_per_device) for device in self.devices]
        self.threads = [0 for _ in self.devices]
        return counts

    def _check_system(self) -> None:
        system = self.system
        if system.kernels != "auto":
            raise ConfigurationError(
                f"SystemConf: kernels must be 'auto' on GPUs, whose kernels are CUDA's. Received: {system.kernels!r}"
            )
        if system.threads_per_learner is not None:
            raise ConfigurationError(
                "SystemConf: threads_per_learner must be None on GPUs, where a learner is a stream. "
                f"Received: threads_per_learner={system.threads_per_learner}"
            )

    def _open(self) -> None:
        numbers = [self.devices[device].number for device in self.device_of]
        self._compute = [
            CudaStream(f"learner-{i}", number, libraries=True, tf32=self._tf32) for i, number in enumerate(numbers)
        ]
        self._copies = [CudaStream(f"copies-{i}", number) for i, number in enumerate(numbers)]
        self.streams = [*self._compute, *self._copies]

    @property
    def _compile_on(self) -> AnyStream:
        return self._compute[0]

    def zeros(self, device: int) -> Zeros:
        number = self.devices[device].number

        def zeros(nbytes: int) -> Array:
            with on(Stream(number, 0)):
                memory: Array = api().zeros(nbytes)
            return memory

        return zeros

    def synchronise(self) -> None:
        for device in self.devices:
            with on(Stream(device.number, 0)):
                api().runtime.deviceSynchronize()

    @property
    def to_device(self) -> Callable[[Array], Array]:
        return to_device

    def _new_loader(self, examples: Examples, order: Order, name: str) -> Loader:
        slots = Slots(SLOTS * self.learners, batch_tensors(examples, order.batch_size))
        loader = Loader(examples, order, SLOTS * self.learners, name=name, memory=slots.batches, in_turn=self.barrier)
        self._slots[loader] = slots
        return loader

    def _batch_source(self, loader: Loader) -> BatchSource:
        return batch_source(loader.images[:1], loader.labels[:1], self.data.scale)

    @property
    def memory(self) -> dict[str, int]:
        return self._slots_memory()  # the rest is the GPUs'

    def _check_plan(self) -> None:
        for number, device in enumerate(self.devices):
            learners = self.device_of.count(number)
            workspaces = CUBLAS_WORKSPACE * learners
            records = sum(slots.record.nbytes for slots in self._slots.values())
            needs = {
                **self._vectors_memory(1, learners),
                "batches": len(PARITIES) * records * learners,
                "cuBLAS": workspaces,
                "constants": CONSTANTS * (learners + 1),
            }
            with on(Stream(device.number, 0)):
                free = api().free_memory()
            # The streams, which have cuBLAS's memory, are there already.
            check_memory(needs, free + workspaces, f"free memory of {device.name}")

    # Learners

    def _build_members(
        self, averaging: Averaging, replicas: Sequence[Replica], collective: Collective | None
    ) -> tuple[list[Member], CudaSynchroniser | None]:
        if collective is not None:
            raise ConfigurationError("collective must be None on GPUs, whose vectors NCCL adds up. Received: one")
        learners: list[CudaLearner] = []
        members: list[Member] = []
        for number in range(self.learners):
            member = self._member(number, averaging, replicas[number])
            members.append(member)
            learners.append(member.learner)  # type: ignore[arg-type]
            self.streams = [*learners, *self._compute[number + 1 :], *self._copies[number + 1 :]]
        ends = [
            self._end_of_tick(device, averaging, [replicas[i] for i in own], [learners[i] for i in own])
            for device in range(len(self.devices))
            for own in [[i for i, of in enumerate(self.device_of) if of == device]]
        ]
        self.streams = [*learners, *(end.stream for end in ends)]
        ranks = NcclCollective([end.stream for end in ends]) if len(self.devices) > 1 else None
        self._synchroniser = CudaSynchroniser(self.learners, ends, ranks, self.flags, self._submitting)
        return members, self._synchroniser

    def close(self) -> None:
        """Give back streams and graphs."""
        with self._submitting:
            super().close()
            if self._synchroniser is not None:
                self._synchroniser.close()

    def _coefficients(self, averaging: Averaging, learners: int) -> DeviceCoefficients:
        expand: dict[str, float] = {}
        if averaging.devices == 1:
            expand = averaging.mean("sent", learners)
        rule, keeps = averaging.barrier, bool(averaging.kept)
        host = Coefficients(rule, self.solver, self.learners, averaging.multipliers, expand, keeps)
        return DeviceCoefficients(host)

    def _member(self, number: int, averaging: Averaging, replica: Replica) -> Member:
        device = self.device_of[number]
        stream, base = self._compute[number], self.bases[device]
        arena = self.zeros(device)(max(self._arena, 1))
        with on(stream.place):
            coefficients = self._coefficients(averaging, self.device_of.count(device))
            learner = CudaLearner(
                number, stream, self._copies[number], coefficients, self.flags.abort, self._submitting
            )
            learner.sends = averaging.barrier.sends
            if learner.sends != "weights":
                learner.sent = Event(stream.device)
            training = [self._input(self.loader, learner.results) for _ in PARITIES]
            narrow = self.narrow_vectors(device)
            tasks: dict[TaskKey, Task] = {}
            steps: dict[tuple[str, int], Work] = {}
            for parity in PARITIES:
                weights = base.buffers[parity] if replica.weights is None else replica.weights
                present, following = replica.statistics[parity], replica.statistics[1 - parity]
                for buffer, place in enumerate(training):
                    vectors = {**narrow, **self._vectors(weights, replica.gradient, present, following)}
                    tasks["synchronise", parity, buffer] = self._task(self.program, arena, vectors, place)
                    if self.clock.tau > 1:
                        vectors = {**narrow, **self._vectors(weights, replica.gradient, present, present)}
                        tasks["local", parity, buffer] = self._task(self.program, arena, vectors, place)
                vectors = {**base.vectors(parity), **replica.vectors()}
                step = averaging.step((), coefficients.step, vectors)
                if learner.sends == "new weights":
                    steps["send", parity] = self._work(step)
                    step = averaging.reply(coefficients.reply, vectors)
                steps["synchronise", parity] = self._work(step)
                if self.clock.tau > 1:
                    steps["local", parity] = self._work(averaging.step((), coefficients.local, replica.vectors()))
            tasks |= self._check_tasks(learner, base, replica, arena, narrow)
            learner.tasks, learner.steps = tasks, steps
        return Member(learner, device, replica, arena, training[0].arrays["state"])

    def _check_tasks(
        self, learner: CudaLearner, base: BaseModel, replica: Replica, arena: Array, narrow: dict[str, Array]
    ) -> dict[TaskKey, Task]:
        """What a learner tests z with, if there is a check set. narrow: its vectors of 16 bits."""
        if self.check_program is None or self.check_loader is None:
            return {}
        tasks: dict[TaskKey, Task] = {}
        for buffer, place in enumerate(self._input(self.check_loader, learner.results) for _ in PARITIES):
            for parity in PARITIES:
                observed = base.statistics[parity]
                vectors = {**narrow, **self._vectors(base.buffers[parity], replica.gradient, observed, observed)}
                tasks["check", parity, buffer] = self._task(self.check_program, arena, vectors, place)
        return tasks

    def _vectors(self, weights: Array, gradient: Array, present: Array, following: Array) -> dict[str, Array]:
        return {"weights": weights, "gradient": gradient, "statistics": present, "statistics_next": following}

    def _input(self, loader: Loader, results: Array) -> Input:
        """A buffer for batches on the current stream's device."""
        slots, device = self._slots[loader], int(api().runtime.getDevice())
        return Input(api().zeros(slots.record.nbytes), slots, results, Event(device), Event(device))

    def _task(self, program: Program, arena: Array, vectors: dict[str, Array], place: Input) -> Task:
        memory = Memory(arena, self.program.model, vectors, place.arrays, self.program.statistics, to_device)
        parts = program.bind(memory)
        steps = [*parts.forward, *parts.backward]
        loss, accuracy = (
            program.output(found[0].order, memory) if found else None
            for found in (losses(program.graph), measures(program.graph))
        )
        if loss is not None or accuracy is not None:
            steps.append(BoundStep("results", store_results(loss, accuracy, place.arrays["state"], place.results)))
        return Task(self._work(steps), place, loss is not None, accuracy is not None)

    def _work(self, steps: Sequence[BoundStep]) -> Work:
        return Work(steps, graph=self.system.graphs and not self.system.check_numerics)

    # The end of a tick

    def _end_of_tick(
        self, device: int, averaging: Averaging, replicas: Sequence[Replica], learners: Sequence[CudaLearner]
    ) -> DeviceTick:
        number, base = self.devices[device].number, self.bases[device]
        stream = CudaStream(f"synchroniser-{device}", number)
        with on(stream.place):
            coefficients = self._coefficients(averaging, len(replicas))
            sums: dict[int, Work] = {}
            merges: dict[int, Work] = {}
            for parity in PARITIES:
                if len(self.devices) > 1:
                    sums[parity] = self._work(sum_steps(averaging, replicas, base, parity))
                merges[parity] = self._work(merge_steps(averaging, coefficients, replicas, base, parity))
            means = [vector for vector in (base.mean, base.statistics_mean) if vector is not None and vector.size]
            return DeviceTick(stream, learners, Event(number), sums, merges, coefficients, means)
