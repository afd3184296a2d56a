"""The clock tick on GPUs: a learner's tasks as work for its stream.

The same vectors are combined as on CPUs, but for a device as a whole instead of in slices. Streams wait for each other
by events (`learner.py`, `synchroniser.py`).
"""

from __future__ import annotations

from crossbow.kernels.cuda.launch import on
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.coefficients import Formulas
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.memory import CudaLearnerMemory
from crossbow.runtime.cuda.stream import LearnerStreams
from crossbow.runtime.cuda.work import (
    PARITIES,
    BoundWork,
    StepKey,
    Work,
    WorkKey,
    bound_work,
    check_work,
    new_work,
    task_ranges,
)
from crossbow.runtime.merging import Merging
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.task import Report


def tick_learner(
    assembly: Assembly,
    merging: Merging,
    formulas: Formulas,
    number: int,
    device: int,
    streams: LearnerStreams,
    memory: CudaLearnerMemory,
    report: Report,
) -> CudaLearner:
    """Create a learner with its work of both parities. device: number of the device in the run."""
    base, replica = assembly.bases[device], assembly.replicas[number]
    with on(streams.compute.place):
        numbers = DeviceNumbers(formulas.length)
        tasks = _tasks(assembly, memory, base, replica) | check_work(assembly, memory, base, replica)
        steps = _steps(assembly, merging, formulas, numbers, base, replica)
        sends = merging.rule.sends
        return CudaLearner(
            number,
            streams,
            memory.turns,
            tasks,
            steps,
            numbers,
            assembly.flags,
            report,
            sends=sends,
            scaling=memory.scaling,
            recorder=assembly.setting.recorder,
            ranges=task_ranges(assembly),
        )


def _tasks(
    assembly: Assembly, memory: CudaLearnerMemory, base: BaseModel, replica: Replica
) -> dict[WorkKey, BoundWork]:
    """The forward and backward passes."""
    tasks: dict[WorkKey, BoundWork] = {}
    for parity in PARITIES:
        weights = base.buffers[parity] if replica.weights is None else replica.weights
        present, following = replica.statistics[parity], replica.statistics[1 - parity]
        vectors = memory.vectors(weights, replica.gradient, (present, following))
        for buffer, bound in enumerate(bound_work(assembly, assembly.training, memory, vectors)):
            tasks["synchronise", parity, buffer] = bound
        if assembly.setting.clock.tau > 1:
            vectors = memory.vectors(weights, replica.gradient, (present, present))
            for buffer, bound in enumerate(bound_work(assembly, assembly.training, memory, vectors)):
                tasks["local", parity, buffer] = bound
    return tasks


def _steps(
    assembly: Assembly,
    merging: Merging,
    formulas: Formulas,
    numbers: DeviceNumbers,
    base: BaseModel,
    replica: Replica,
) -> dict[StepKey, Work]:
    """The step after the backward pass, or after the merge."""
    updates, arithmetic, clipped = formulas.over(numbers.array), merging.arithmetic, merging.clips_own
    steps: dict[StepKey, Work] = {}
    for parity in PARITIES:
        vectors = {**base.vectors(parity), **replica.vectors()}
        step = arithmetic.step((), updates["step"], vectors, clipped=clipped)
        if merging.rule.sends == "new weights":
            steps["send", parity] = new_work(assembly, step)
            step = merging.reply(updates["reply"], vectors)
        steps["synchronise", parity] = new_work(assembly, step)
        if assembly.setting.clock.tau > 1:
            local = arithmetic.step((), updates["local"], replica.vectors(), clipped=clipped)
            steps["local", parity] = new_work(assembly, local)
    return steps
