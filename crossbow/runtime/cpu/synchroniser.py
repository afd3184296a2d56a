"""The end of a tick with several CPU devices or ranks: a separate stream, with one task per tick.

::

    wait ready (all) → mean of all learners → merge on every device → signal merged

In a tree, it waits for `contributed`, the sums of the devices. Clipped gradients have two more calls before the merge:
norm, and clip.
"""

from __future__ import annotations

from crossbow.compile import BoundStep
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.coefficients import BoundUpdate, Formulas
from crossbow.runtime.cpu.coefficients import HostNumbers
from crossbow.runtime.cpu.learner import CpuLearner
from crossbow.runtime.cpu.stream import CpuStream, Signals
from crossbow.runtime.cpu.work import BoundTask, task_list
from crossbow.runtime.mean import NAME, Mean
from crossbow.runtime.memory import new_state
from crossbow.runtime.merging import Merging
from crossbow.runtime.task import PARITIES, Report, TaskKey
from crossbow.synch import Collective
from crossbow.timeline.recorder import SYNCHRONISER
from crossbow.types import Array


def new_synchroniser(
    assembly: Assembly, merging: Merging, formulas: Formulas, stream: CpuStream, report: Report, collective: Collective
) -> CpuLearner:
    """Merges between devices. Its tasks are the ends of ticks."""
    state, numbers, signals = new_state(), HostNumbers(formulas.length), Signals.of(assembly)
    merge = formulas.over(numbers.array)["merge"]
    mean = Mean(merging, assembly.setting.tick_ranks, collective, assembly.flags)
    tasks: dict[TaskKey, BoundTask] = {
        ("synchronise", parity): BoundTask(task_list(synchroniser_steps(mean, signals, assembly, parity, merge, state)))
        for parity in PARITIES
    }
    return CpuLearner(
        assembly.setting.learners,
        stream,
        tasks,
        numbers,
        state,
        assembly.flags,
        report,
        recorder=assembly.setting.recorder,
        track=SYNCHRONISER,
    )


def synchroniser_steps(
    mean: Mean, signals: Signals, assembly: Assembly, parity: int, merge: BoundUpdate, state: Array
) -> list[BoundStep]:
    """The task of a tick: compute the mean of all learners, and merge on each device."""
    merging, bases, replicas = mean.merging, assembly.bases, assembly.replicas
    arithmetic, flags = merging.arithmetic, signals.flags
    means = [base.mean for base in bases if base.mean is not None]
    steps = signals.wait(*mean.awaited, state)
    steps += mean.of("sent", merging.sent(replicas), means)
    statistics = [base.statistics_mean for base in bases if base.statistics_mean is not None]
    if bases[0].statistics[0].size:
        steps += mean.of("observed", merging.observed(replicas, parity), statistics)
        for base, observed in zip(bases, statistics, strict=True):
            vectors = {"statistics": base.statistics[1 - parity], "mean": observed}
            steps += arithmetic.combine_statistics({"mean": 1.0}, vectors)
    whole = slice(0, means[0].size)
    for base in bases:
        steps += arithmetic.look_through(NAME, ("mean",), base.vectors(parity), whole)
    if merging.clips_mean:
        clipping, merge = arithmetic.clip_by_norm(merge, {"mean": 1.0}, {"mean": means[0]})
        steps += clipping
    for base in bases:
        counted, update = arithmetic.count("average", merge, base.vectors(parity))
        steps += [*counted, *arithmetic.adjust("average", update, base.vectors(parity), whole)]
    return [*steps, *signals.signal("merged", flags.merged, 0, state)]
