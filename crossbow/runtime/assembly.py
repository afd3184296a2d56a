"""The assembly of a run: devices, streams, programs, models and learners, made once, before the first task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.compile import BatchSource, BoundStep, Memory, Program, check_memory, compile_graph
from crossbow.conf import ModelConf, SolverConf, SystemConf
from crossbow.data import Dataset
from crossbow.data.dataset import Examples
from crossbow.data.loader import Loader
from crossbow.data.order import CheckOrder, TrainingOrder
from crossbow.dataflow.graph import Graph, losses, measures
from crossbow.kernels import select_library
from crossbow.runtime.clock import work_clock
from crossbow.runtime.coefficients import ANY, Coefficients
from crossbow.runtime.device import parse_devices
from crossbow.runtime.learner import BoundTask, Learner, TaskKey, bind_task
from crossbow.runtime.replica import BaseModel, Replica, new_base_model, new_replica
from crossbow.runtime.stream import CpuStream
from crossbow.runtime.tick import (
    Averaging,
    Flags,
    Place,
    learner_coefficients,
    local_task,
    new_state,
    synchroniser_task,
    synchronising_task,
)
from crossbow.synch import SMA, Collective, HostCollective
from crossbow.types import Array, ConfigurationError, LabelRange, Phase, Tensor, aligned_zeros

SLOTS = 8
"""Slots of a batch ring, per learner: the loader is ahead of the scheduler, which is ahead of the learners."""
CHECK_BATCH_SIZE = 64
"""Examples in a test batch, unless set: where the kernels are near their best speed."""
THREADS_AT_MOST = 1024
"""Of all learners together, unless there are more cores. What a system cannot start any more, OpenMP answers by
ending the process."""
CLOSE_SECONDS = 0.5
"""How long closing waits for each stream's current task."""


@dataclass(frozen=True)
class Member:
    """A learner with what it holds."""

    learner: Learner
    device: int
    replica: Replica
    arena: Array
    state: Array


class Assembly:
    """Everything of a run that does not change while it runs."""

    def __init__(
        self,
        training: Graph,
        check: Graph,
        data: Dataset,
        model: ModelConf,
        solver: SolverConf,
        system: SystemConf,
        collective: Collective | None,
    ) -> None:
        """Raises GraphError or ConfigurationError; no thread is left then."""
        self.data, self.model_conf, self.solver, self.system = data, model, solver, system
        self.check_graph = check
        self.dtype = np.dtype(system.precision)
        self.library, self._set_threads = select_library(system.kernels, self.dtype)
        self.devices = parse_devices(system.devices)
        counts = [device.learners(system.learners_per_device) for device in self.devices]
        self.threads = [
            device.threads(count, system.threads_per_learner)
            for device, count in zip(self.devices, counts, strict=True)
        ]
        """Threads of a learner, for each device."""
        self._check_threads(counts)
        self.device_of = [number for number, count in enumerate(counts) for _ in range(count)]
        """The number of each learner's device."""
        self.rule = model.rule if model.rule is not None else SMA()
        self.rule.check_learners(self.learners)
        self.clock = work_clock(self.learners, self.rule.tau, model.wpc)
        self.order = TrainingOrder(len(data.train), model.batch_size, system.seed)
        check_memory(self._slots_memory())
        self.loader = Loader(data.train, self.order, SLOTS * self.learners)
        self.streams: list[CpuStream] = []
        try:
            self._build(training, check, collective)
        except BaseException:
            self.close()
            raise

    @property
    def learners(self) -> int:
        """Of all devices."""
        return len(self.device_of)

    def close(self) -> None:
        """End the streams' threads, after the task each is in."""
        for stream in self.streams:
            stream.close(CLOSE_SECONDS)

    # What is too much for the machine

    def _check_threads(self, counts: Sequence[int]) -> None:
        """Refuse more threads than can be expected to start."""
        most = max(THREADS_AT_MOST, sum(len(device.cores) for device in self.devices))
        wanted = sum(count * threads for count, threads in zip(counts, self.threads, strict=True))
        if wanted > most:
            raise ConfigurationError(
                f"expected at most {most} threads, of all learners together. Received: {wanted}, of {sum(counts)} "
                "learners; lower learners_per_device or threads_per_learner"
            )

    def _slots_memory(self) -> dict[str, int]:
        """Bytes of the rings that batches wait in."""
        batches = [(self.data.train, self.model_conf.batch_size)]
        if self.data.check is not None:
            batches.append((self.data.check, self.check_batch_size(len(self.data.check))))
        examples = sum(
            batch * (part.images[:1].nbytes + part.labels[:1].nbytes + 2 * np.dtype(np.int64).itemsize)
            for part, batch in batches
        )
        return {"batches that wait": SLOTS * self.learners * examples}

    def _vectors_memory(self) -> dict[str, int]:
        """Bytes of the vectors of weights, gradients and velocities, and of the arenas."""
        used = self.rule.merge(self.solver, ANY, 1).vectors
        own = self.rule.local_step(self.solver, ANY, 1, synchronises=True).vectors
        several = len(self.devices) > 1
        of_a_device = 2 + ("base_velocity" in used) + several
        of_a_learner = 1 + (not self.rule.reads_base) + ("velocity" in own)
        vectors = of_a_device * len(self.devices) + of_a_learner * self.learners
        return {
            "weights and gradients": vectors * self.program.model.elements * self.dtype.itemsize,
            "intermediate results": self._arena * self.learners,
        }

    @property
    def _arena(self) -> int:
        """Bytes of a learner's arena, which its programs share."""
        programs = [self.program] if self.check_program is None else [self.program, self.check_program]
        return max(program.plan.arena for program in programs)

    # Building

    def _build(self, training: Graph, check: Graph, collective: Collective | None) -> None:
        for number, device in enumerate(self.device_of):
            self.streams.append(self._new_stream(f"learner-{number}", self.devices[device].cores, self.threads[device]))
        self.program = self._compile(training, self.loader, self.data.train, Phase.TRAIN, None)
        self.check_program: Program | None = None
        self.check_loader: Loader | None = None
        if self.data.check is not None:
            examples = self.data.check
            self.check_order = CheckOrder(len(examples), self.check_batch_size(len(examples)))
            self.check_loader = Loader(examples, self.check_order, SLOTS * self.learners, name="check-loader")
            self.check_program = self._compile(check, self.check_loader, examples, Phase.CHECK, self.program)
        check_memory({**self._vectors_memory(), **self._slots_memory()})
        self.bases = [new_base_model(self.program, self.rule, self.solver, len(self.devices)) for _ in self.devices]
        self.program.model.initialise(self.bases[0].buffers[0], self.system.seed)
        self.program.statistics.initialise(self.bases[0].statistics[0], self.system.seed)
        self.flags = Flags(self.learners, self.learners if len(self.devices) == 1 else 1)
        averaging = Averaging(
            self.library,
            self.rule,
            self.solver,
            self.flags,
            self.learners,
            len(self.devices),
            self.dtype,
            self.program.model.learning_rates,
            self.program.model if self.system.check_numerics else None,
        )
        replicas = [new_replica(self.program, self.rule, self.solver) for _ in self.device_of]
        self.members = [self._member(number, averaging, replicas) for number in range(self.learners)]
        self.synchroniser: Learner | None = None
        if len(self.devices) > 1:
            self.synchroniser = self._new_synchroniser(averaging, collective or HostCollective(len(self.devices)))

    def _new_stream(self, name: str, cores: Sequence[int], threads: int) -> CpuStream:
        try:
            return CpuStream(name, cores, threads, self._set_threads)
        except RuntimeError as error:  # what Python raises where the system starts no more threads
            raise ConfigurationError(
                f"expected a system that starts the threads of {self.learners} learners. Received: {error}, after "
                f"{len(self.streams)}; lower learners_per_device"
            ) from error

    def check_batch_size(self, examples: int) -> int:
        """Examples in a test batch."""
        return min(self.model_conf.check_batch_size or max(self.model_conf.batch_size, CHECK_BATCH_SIZE), examples)

    def _compile(
        self, graph: Graph, loader: Loader, examples: Examples, phase: Phase, first: Program | None
    ) -> Program:
        """Compile on the first learner's stream: a kernel is made for as many threads as its thread has."""
        return self.streams[0].call(
            lambda: compile_graph(
                graph,
                batch_source(loader.images, loader.labels, self.data.scale),
                self.library,
                self.dtype,
                phase=phase,
                labels=_label_range(examples, loader),
                model=None if first is None else first.model,
                statistics=None if first is None else first.statistics,
                seed=self.system.seed,
                check_numerics=self.system.check_numerics,
            )
        )

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
        learner = Learner(number, self.streams[number], tasks, coefficients, state, self.flags.abort)
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
        tasks = {("synchronise", parity): _bound(self.program, memory, steps)}
        if self.clock.tau > 1:
            memory = self._memory(self.loader, arena, state, weights, own.gradient, (present, present))
            parts = self.program.bind(memory, in_blocks=averaging.in_blocks)
            steps = local_task(averaging, parts, own, coefficients)
            tasks["local", parity] = _bound(self.program, memory, steps)
        if self.check_program is not None and self.check_loader is not None:
            observed = base.statistics[parity]
            memory = self._memory(
                self.check_loader, arena, state, base.buffers[parity], own.gradient, (observed, observed)
            )
            tasks["check", parity] = _bound(self.check_program, memory, self.check_program.bind(memory).forward)
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
        self.streams.append(stream)
        state, coefficients = new_state(), Coefficients(self.rule, self.solver, self.learners, averaging.multipliers)
        tasks = {}
        for parity in range(2):
            steps = synchroniser_task(averaging, collective, self.bases, parity, coefficients, state)
            tasks["synchronise", parity] = bind_task(steps, None, None)
        return Learner(self.learners, stream, tasks, coefficients, state, self.flags.abort)


def _bound(program: Program, memory: Memory, steps: Sequence[BoundStep]) -> BoundTask:
    loss, measure = losses(program.graph), measures(program.graph)
    return bind_task(
        steps,
        program.output(loss[0].order, memory) if loss else None,
        program.output(measure[0].order, memory) if measure else None,
    )


def batch_source(images: Array, labels: Array, scale: float) -> BatchSource:
    """The slots of a ring, as the compiler wants them described."""
    return BatchSource(Tensor(images.shape, images.dtype), Tensor(labels.shape, labels.dtype), scale)


def _label_range(examples: Examples, loader: Loader) -> LabelRange:
    labels = examples.labels
    classes = bool(np.issubdtype(labels.dtype, np.integer))
    return LabelRange(loader.labels.shape[1:], classes, float(labels.min()), float(labels.max()))
