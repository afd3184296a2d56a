"""Summary of a run in numbers and names, for scripts and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.cluster.members import Rank
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Backend
from crossbow.runtime.device import CpuDevice, thread_cores
from crossbow.runtime.position import Position
from crossbow.runtime.setting import RunSetting
from crossbow.synch import Rule, RuleSequence, TwoLevel


@dataclass(frozen=True)
class DeviceSummary:
    """A device of a run."""

    name: str
    cores: tuple[int, ...]
    """Cores on which the learners of a CPU device may run (`thread_cores`); empty for a GPU."""
    learners: int
    threads_per_learner: int | None
    """Threads of each learner; None on a GPU, where a learner is a stream."""


@dataclass(frozen=True)
class MemorySummary:
    """Memory of each learner in bytes."""

    vector: int
    """Size of a vector of all variables. Weights, gradient and velocity are one vector each."""
    arena: int
    """Size of the intermediate results in the memory plan for training."""
    lower_bound: int
    """Size of the intermediate results in use at the fullest step. No plan needs less."""
    without_reuse: int
    """Size of the intermediate results without sharing of memory."""


@dataclass(frozen=True)
class RunSummary:
    """Engine, devices and progress of a run. It is a snapshot, which does not change as training continues."""

    devices: tuple[DeviceSummary, ...]
    """The devices of this rank."""
    learners: int
    """Number of learners on all devices of all ranks."""
    ranks: tuple[Rank, ...]
    """The ranks that train together, or only this process."""
    shared_memory: bool
    """Whether the learners of all ranks combine their vectors in shared memory."""
    sum_order: str
    """Order of sums on CPUs under a rule with a barrier: "chain", whose bits do not depend on the placement of
    learners, or "tree". "" without a barrier, and for GPUs."""
    library: str
    """Name of the kernel library."""
    parameters: int
    """Number of trained values in a model."""
    elements: int
    """Length of a vector of all variables: the parameters, and the padding between them."""
    memory: MemorySummary
    """Memory of each learner: `vector`, `arena`, `lower_bound` and `without_reuse`, in bytes."""
    rule: Rule | RuleSequence | TwoLevel
    """The given rule, or the default rule."""
    tasks_per_tick: int
    """Number of tasks in a clock tick, of all learners together."""
    tasks_per_epoch: float
    """Batches in an epoch; not an integer if the batch size does not divide the number of examples."""
    tick: int
    """Number of ticks done."""
    tasks: int
    """Number of tasks done."""
    tuning: bool
    """Whether the auto-tuner is comparing numbers of learners."""


def summarise(backend: Backend, assembly: Assembly, position: Position) -> RunSummary:
    """The summary of a run with one rule and a number of learners."""
    devices = [
        DeviceSummary(
            device.name,
            thread_cores(device) if isinstance(device, CpuDevice) else (),
            backend.device_of.count(number),
            backend.threads[number] if isinstance(device, CpuDevice) else None,
        )
        for number, device in enumerate(backend.devices)
    ]
    program, setting = assembly.program, assembly.setting
    plan, vector = program.plan, program.model.elements * program.model.dtype.itemsize
    return RunSummary(
        devices=tuple(devices),
        learners=setting.learners,
        ranks=setting.ranks.view.ranks,
        shared_memory=setting.shared is not None,
        sum_order=_sum_order(setting, backend),
        library=backend.library.name,
        parameters=program.model.parameters,
        elements=program.model.elements,
        memory=MemorySummary(vector, plan.arena, plan.lower_bound, plan.without_reuse),
        rule=setting.given_rule,
        tasks_per_tick=setting.clock.tasks_per_tick,
        tasks_per_epoch=assembly.order.tasks_per_epoch,
        tick=position.tick,
        tasks=position.tasks,
        tuning=False,
    )


def _sum_order(setting: RunSetting, backend: Backend) -> str:
    if not setting.barrier or not all(isinstance(device, CpuDevice) for device in backend.devices):
        return ""
    return "chain" if setting.chained else "tree"
