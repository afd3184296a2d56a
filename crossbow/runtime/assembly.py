"""The assembly of a run: devices, streams, programs, models and learners, made once, before the first task."""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from crossbow.compile import BatchSource, ModelLayout, Program, check_memory, compile_graph
from crossbow.data import Dataset
from crossbow.data.dataset import Examples
from crossbow.data.loader import Loader
from crossbow.data.order import CheckOrder, Order, TrainingOrder
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import Graph
from crossbow.kernels.library import KernelLibrary
from crossbow.runtime.clock import work_clock
from crossbow.runtime.coefficients import ANY
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.device import Device
from crossbow.runtime.learner import Report
from crossbow.runtime.memory import assign
from crossbow.runtime.replica import Replica, Zeros, new_base_model, new_narrow_vectors, new_replica
from crossbow.runtime.tick import Averaging, Flags
from crossbow.solver import Pace, SolverConf
from crossbow.synch import SMA, BarrierRule, Collective, Rule
from crossbow.synch.progress import check_local_variables, check_skip
from crossbow.types import Array, ConfigurationError, LabelRange, Phase, Tensor

T = TypeVar("T")

SLOTS = 8
"""Slots of a batch ring, per learner: the loader is ahead of the scheduler, which is ahead of the learners."""
CHECK_BATCH_SIZE = 64
"""Examples in a test batch, unless set: where the kernels are near their best speed."""
CLOSE_SECONDS = 0.5
"""How long closing waits for each stream's current task."""


class AnyStream(Protocol):
    """What the engine needs of a stream."""

    def call(self, work: Callable[[], T]) -> T: ...
    def wait(self, timeout: float) -> bool: ...
    def close(self, timeout: float | None = None) -> bool: ...


class AnyLearner(Protocol):
    """What the engine needs of a learner, or of the party that ends ticks."""

    number: int

    def submit(
        self,
        key: tuple[str, int],
        *,
        task: int,
        tick: int,
        slot: int,
        examples: int,
        pace: Pace,
        release: Callable[[int], None],
        report: Report,
    ) -> None: ...


@dataclass(frozen=True)
class Member:
    """A learner with what it holds."""

    learner: AnyLearner
    device: int
    replica: Replica
    arena: Array
    state: Array


class Assembly(ABC):
    """Everything of a run that does not change while it runs."""

    devices: Sequence[Device]
    threads: Sequence[int]
    """Threads of a learner, for each device."""
    library: KernelLibrary
    streams: Sequence[AnyStream]
    """What work is given to, the first learner's first."""
    runs_ahead: bool = False
    """Whether ticks that were submitted are done even if a task before them fails: z may be lost then."""

    def __init__(
        self,
        training: Graph,
        check: Graph,
        data: Dataset,
        model: ModelConf,
        solver: SolverConf,
        system: SystemConf,
        collective: Collective | None,
        beside: int,
    ) -> None:
        """beside: bytes of the machine's memory that other assemblies have meanwhile.

        Raises GraphError or ConfigurationError; no thread is left then.
        """
        self.data, self.model_conf, self.solver, self.system = data, model, solver, system
        self.check_graph = check
        self.dtype = system.dtype
        counts = self._choose()
        self.device_of = [number for number, count in enumerate(counts) for _ in range(count)]
        """The number of each learner's device."""
        self.given_rule = model.rule if isinstance(model.rule, Rule) else SMA()
        self.rule = self.given_rule.settled([float(max(self.threads[device], 1)) for device in self.device_of])
        """The rule that was given, as it is for these learners."""
        self.barrier = isinstance(self.rule, BarrierRule)
        check_local_variables(model.local_variables, self.rule)
        check_skip(model.skip, self.rule, solver)
        self.clock = work_clock(self.learners, self.rule.tau, model.wpc, barrier=self.barrier)
        self.order = TrainingOrder(len(data.train), model.batch_size, system.seed)
        self._beside = {"learners that are there already": beside} if beside else {}
        check_memory({**self._slots_memory(), **self._beside})
        self.streams = ()
        try:
            self._build(training, check, collective)
        except BaseException:
            self.close()
            raise

    def _kept(self, layout: ModelLayout) -> list[slice]:
        """Where the local variables lie. Raises ConfigurationError for a name that is none."""
        places: dict[int, slice] = {}
        for pattern in self.model_conf.local_variables:
            found = [segment for segment in layout if fnmatch.fnmatchcase(segment.name, pattern)]
            if not found:
                known = ", ".join(segment.name for segment in layout)
                raise ConfigurationError(
                    f"ModelConf: local_variables must be of {known}. Received: local_variables={pattern!r}"
                )
            for segment in found:
                places[segment.offset] = slice(segment.offset, segment.offset + segment.storage.elements)
        return [places[offset] for offset in sorted(places)]

    @property
    def learners(self) -> int:
        """Of all devices."""
        return len(self.device_of)

    @abstractmethod
    def zeros(self, device: int) -> Zeros:
        """What gives a device's memory."""

    def narrow_vectors(self, device: int) -> dict[str, Array]:
        """For a learner's program: its vectors of 16 bits, where kernels compute with such."""
        mixed = self.library.mixed
        return {} if mixed is None else new_narrow_vectors(self.program, mixed, self.zeros(device))

    @property
    def to_device(self) -> Callable[[Array], Array] | None:
        """Puts numbers where kernels read them, where that is not the host's memory."""
        return None

    @abstractmethod
    def synchronise(self) -> None:
        """Return once what was assigned to a device's arrays (`memory.assign`) is there."""

    def close(self) -> None:
        """End the streams' threads, after the task each is in."""
        for stream in self.streams:
            stream.close(CLOSE_SECONDS)

    # What devices differ in

    @abstractmethod
    def _choose(self) -> list[int]:
        """Set `devices`, `threads` and `library`; the number of learners on each device."""

    @abstractmethod
    def _open(self) -> None:
        """Make the learners' streams."""

    @property
    @abstractmethod
    def _compile_on(self) -> AnyStream:
        """The stream that kernels are prepared on."""

    @abstractmethod
    def _new_loader(self, examples: Examples, order: Order, name: str) -> Loader:
        """A loader whose slots the learners can read, or copy."""

    @abstractmethod
    def _batch_source(self, loader: Loader) -> BatchSource:
        """What the learners' programs read batches from."""

    @abstractmethod
    def _build_members(
        self, averaging: Averaging, replicas: Sequence[Replica], collective: Collective | None
    ) -> tuple[list[Member], AnyLearner | None]:
        """The learners, and the party that ends ticks, where that is not they."""

    # What is too much for the machine

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the machine's memory, by what they are for."""
        return {**self._vectors_memory(self._base_models, self.learners), **self._slots_memory()}

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

    def _check_plan(self) -> None:
        """Refuse what does not fit, before any of it is there. Raises ConfigurationError."""
        check_memory({**self.memory, **self._beside})

    def _vectors_memory(self, bases: int, learners: int) -> dict[str, int]:
        """Bytes of the vectors of weights, gradients, velocities and statistics, and of the arenas: of so many base
        models and learners."""
        used = self.rule.vectors(self.solver, ANY)
        several = self._base_models > 1
        of_a_base = 1 + self.barrier + ("base_velocity" in used) + several
        of_a_learner = 1 + (not self.rule.reads_base) + len(used & {"velocity", "taken", "received"})
        vectors = of_a_base * bases + of_a_learner * learners
        statistics = (1 + self.barrier + several) * bases + (1 + self.barrier) * learners
        model, observed = (
            layout.elements * layout.dtype.itemsize for layout in (self.program.model, self.program.statistics)
        )
        narrow = 0 if self.library.mixed is None else 2 * learners * self.library.mixed.dtype.itemsize
        return {
            "weights and gradients": vectors * model + statistics * observed + narrow * self.program.model.elements,
            "intermediate results": self._arena * learners,
        }

    @property
    def _base_models(self) -> int:
        """One on each device; without a barrier one for all, which share their memory."""
        return len(self.devices) if self.barrier else 1

    @property
    def _arena(self) -> int:
        """Bytes of a learner's arena, which its programs share."""
        programs = [self.program] if self.check_program is None else [self.program, self.check_program]
        return max(program.plan.arena for program in programs)

    # Building

    def _build(self, training: Graph, check: Graph, collective: Collective | None) -> None:
        self._open()
        self.loader = self._new_loader(self.data.train, self.order, "loader")
        self.program = self._compile(training, self.loader, self.data.train, Phase.TRAIN, None)
        self.check_program: Program | None = None
        self.check_loader: Loader | None = None
        if self.data.check is not None:
            examples = self.data.check
            self.check_order = CheckOrder(len(examples), self.check_batch_size(len(examples)))
            self.check_loader = self._new_loader(examples, self.check_order, "check-loader")
            self.check_program = self._compile(check, self.check_loader, examples, Phase.CHECK, self.program)
        self._check_plan()
        program, rule, solver, count = self.program, self.rule, self.solver, self._base_models
        self.bases = [new_base_model(program, rule, solver, count, self.zeros(device)) for device in range(count)]
        for layout, vector in (
            (program.model, self.bases[0].buffers[0]),
            (program.statistics, self.bases[0].statistics[0]),
        ):
            values = layout.new_vector()
            layout.initialise(values, self.system.seed)
            assign(vector, values)
        self.flags = Flags(self.learners, self.learners if count == 1 else 1)
        averaging = Averaging(
            self.library,
            rule,
            solver,
            self.flags,
            self.learners,
            count,
            self.dtype,
            program.model.learning_rates,
            program.model if self.system.check_numerics else None,
            self.to_device,
            self._kept(program.model),
        )
        replicas = [new_replica(program, rule, solver, self.zeros(device)) for device in self.device_of]
        self.members, self.synchroniser = self._build_members(averaging, replicas, collective)

    def check_batch_size(self, examples: int) -> int:
        """Examples in a test batch."""
        return min(self.model_conf.check_batch_size or max(self.model_conf.batch_size, CHECK_BATCH_SIZE), examples)

    def _compile(
        self, graph: Graph, loader: Loader, examples: Examples, phase: Phase, first: Program | None
    ) -> Program:
        """Compile on the first learner's stream: a kernel is made for as many threads as its thread has."""
        return self._compile_on.call(
            lambda: compile_graph(
                graph,
                self._batch_source(loader),
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

    def compile_prediction(self, source: BatchSource) -> Program:
        """The check dataflow without what takes labels, with the layout of the training program's variables."""
        return self._compile_on.call(
            lambda: compile_graph(
                derive_prediction(self.check_graph),
                source,
                self.library,
                self.dtype,
                phase=Phase.CHECK,
                model=self.program.model,
                statistics=self.program.statistics,
                check_numerics=self.system.check_numerics,
            )
        )


def batch_source(images: Array, labels: Array, scale: float) -> BatchSource:
    """The slots of a ring, as the compiler wants them described."""
    return BatchSource(Tensor(images.shape, images.dtype), Tensor(labels.shape, labels.dtype), scale)


def _label_range(examples: Examples, loader: Loader) -> LabelRange:
    labels = examples.labels
    classes = bool(np.issubdtype(labels.dtype, np.integer))
    return LabelRange(loader.labels.shape[1:], classes, float(labels.min()), float(labels.max()))
