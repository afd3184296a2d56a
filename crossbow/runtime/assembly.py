"""The parts of a run, the same for all devices and coordinations. They are made once, before the first task."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.compile import Program
from crossbow.data.loader import Loader, batch_tensors
from crossbow.data.order import CheckOrder, TrainingOrder
from crossbow.dataflow.graph import Graph
from crossbow.runtime.arithmetic import VectorArithmetic
from crossbow.runtime.coefficients import ANY
from crossbow.runtime.flags import Flags
from crossbow.runtime.replica import COUNT_NBYTES, BaseModel, OuterModel, Replica, outer_vectors
from crossbow.runtime.setting import RunSetting
from crossbow.synch import PeerRule

SLOTS = 8
"""Slots of a batch ring, per learner: the loader is ahead of the scheduler, which is ahead of the learners. Each
further thread of the loader adds one."""


@dataclass(frozen=True)
class Pipeline:
    """A program, and the loader of the batches that it computes with."""

    program: Program
    loader: Loader
    tests: bool = False
    """Whether the program tests. Then its tasks report all metrics."""


@dataclass(frozen=True)
class Needs:
    """Bytes of memory that a run needs."""

    setting: RunSetting
    training: Program
    check: Program | None
    narrow: int
    """Bytes of a 16-bit number, if kernels compute with these; otherwise 0."""

    @property
    def arena(self) -> int:
        """Bytes of a learner's arena, which its programs share."""
        return max(program.plan.arena for program in (self.training, self.check) if program is not None)

    def slots(self) -> dict[str, int]:
        """Bytes of the rings in which batches wait."""
        return slots_memory(self.setting)

    def all_vectors(self) -> dict[str, int]:
        """Bytes of all vectors and arenas of the run."""
        return self.vectors(self.setting.base_models, self.setting.placement.own)

    def vectors(self, bases: int, learners: int) -> dict[str, int]:
        """Bytes of weights, gradients, moments, statistics and arenas, for these numbers of base models and
        learners."""
        setting, program = self.setting, self.training
        used = setting.rule.vectors(setting.solver, ANY)
        moments = len(used & {"base_velocity", "base_second_moment"})
        of_a_base = 1 + setting.barrier + moments + setting.adds_parts + setting.mean_first
        own = {"velocity", "second_moment", "taken", "received"}
        of_a_learner = 1 + (not setting.rule.reads_base) + len(used & own)
        vectors = of_a_base * bases + of_a_learner * learners
        statistics = (1 + setting.barrier + setting.adds_parts) * bases + (1 + setting.barrier) * learners
        if setting.ranks.several and setting.chained and (setting.adds_parts or setting.between is not None):
            vectors, statistics = vectors + 1, statistics + 1  # the unfinished sum
        if setting.ranks.several and isinstance(setting.rule, PeerRule):
            vectors += 1  # a message that has just arrived
        if setting.between is not None:
            vectors += outer_vectors(setting.between)
            statistics += 2
        model, observed = (layout.elements * layout.dtype.itemsize for layout in (program.model, program.statistics))
        mirrors = 0
        if setting.mirrored:
            part = setting.parts(program.model.elements)[setting.ranks.rank]
            mirrors = of_a_learner * setting.mirrored * (part.stop - part.start) * program.model.dtype.itemsize
        counters, replicas = setting.rule.counters(setting.solver, ANY), learners + setting.mirrored
        counts = ("base_step_count" in counters) * bases * setting.learners + ("step_count" in counters) * replicas
        narrow = 2 * learners * self.narrow * program.model.elements
        whole = vectors * model + statistics * observed
        return {
            "weights and gradients": whole + mirrors + narrow + COUNT_NBYTES * counts,
            "intermediate results": self.arena * learners,
        }


def slots_memory(setting: RunSetting) -> dict[str, int]:
    """Bytes of the rings in which batches wait."""
    data = setting.data
    batches = [(data.train, setting.model.batch_size)]
    if data.check is not None:
        batches.append((data.check, setting.check_batch_size(len(data.check))))
    examples = sum(tensor.nbytes for part, batch in batches for tensor in batch_tensors(part, batch))
    slots = SLOTS * setting.placement.own + setting.system.loader_threads - 1
    return {"batches that wait": slots * examples}


@dataclass(frozen=True)
class Assembly:
    """The parts of a run that learners are bound to."""

    setting: RunSetting
    check_graph: Graph
    order: TrainingOrder
    training: Pipeline
    check: Pipeline | None
    check_order: CheckOrder | None
    bases: tuple[BaseModel, ...]
    replicas: tuple[Replica, ...]
    flags: Flags
    arithmetic: VectorArithmetic
    needs: Needs
    outer: OuterModel | None = None
    """With two levels, z between the hosts."""
    part: slice | None = None
    """On a server, under a rule without a barrier: its range of z."""
    mirrors: tuple[Replica, ...] = ()
    """On a server, this range of the last contribution and of the state of each other rank's learner."""
    all_replicas: tuple[Replica, ...] = ()
    """If ranks share memory, the replicas of the learners of all ranks; their base model is the same memory, too."""

    @property
    def base(self) -> BaseModel:
        """The base model that is tested and saved."""
        return self.bases[0] if self.outer is None else self.outer.base

    def tested(self, device: int) -> BaseModel:
        """The base model that the learners of a device test."""
        return self.bases[device] if self.outer is None else self.outer.on_device(device)

    @property
    def program(self) -> Program:
        """The training program."""
        return self.training.program

    @property
    def check_program(self) -> Program | None:
        return None if self.check is None else self.check.program

    @property
    def loaders(self) -> list[Loader]:
        return [pipeline.loader for pipeline in (self.training, self.check) if pipeline is not None]

    def locate(self, task: int, example: int, testing: bool) -> str:
        """The place in the data set of an example of a task's batch."""
        pipeline = self.check if testing else self.training
        assert pipeline is not None
        return pipeline.loader.locate(task, example)

    def variables(self) -> list[slice]:
        """The place of each variable in a vector."""
        return [slice(each.offset, each.offset + each.storage.elements) for each in self.program.model]
