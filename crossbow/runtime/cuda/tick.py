"""The clock tick on GPUs: a learner's tasks as work for its stream.

The same vectors are combined as on CPUs, but for a device as a whole instead of in slices. Streams wait for each other
by events (`learner.py`, `synchroniser.py`). The only learner of a run waits for no other stream, and merges itself.
Under a rule that merges the weights from before the step, the task of each of several learners contains the wait,
unless the hosts of several ranks add up the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crossbow.compile import BoundStep
from crossbow.kernels.cuda.launch import on
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.coefficients import BoundUpdate, Formulas
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.memory import CudaLearnerMemory
from crossbow.runtime.cuda.stream import Event, LearnerStreams, WaitFor
from crossbow.runtime.cuda.synchroniser import merge_steps
from crossbow.runtime.cuda.work import (
    BoundWork,
    Work,
    WorkKey,
    bound_work,
    check_work,
    new_work,
    task_ranges,
)
from crossbow.runtime.merging import Merging
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.task import PARITIES, Purpose, Report


def tick_learner(
    assembly: Assembly,
    merging: Merging,
    formulas: Formulas,
    number: int,
    device: int,
    streams: LearnerStreams,
    memory: CudaLearnerMemory,
    merged: Event,
    report: Report,
) -> CudaLearner:
    """Create a learner with its work for both parities. number, device: its number and that of its device in this rank.
    merged: event that is recorded after the device's merge of a tick."""
    base, replica = assembly.bases[device], assembly.replicas[number]
    with on(streams.compute.place):
        numbers = DeviceNumbers(formulas.length)
        updates = formulas.over(numbers.array)
        tasks, steps = _works(assembly, merging, updates, memory, base, replica, merged)
        return CudaLearner(
            merging.first + number,
            streams,
            memory.turns,
            tasks | check_work(assembly, memory, assembly.tested(device), replica),
            steps,
            numbers,
            assembly.flags,
            report,
            sends=merging.rule.sends,
            waits_inside=_waits_inside(assembly, merging),
            scaling=memory.scaling,
            recorder=assembly.setting.recorder,
            ranges=task_ranges(assembly),
        )


def _works(
    assembly: Assembly,
    merging: Merging,
    updates: Mapping[str, BoundUpdate],
    memory: CudaLearnerMemory,
    base: BaseModel,
    replica: Replica,
    merged: Event,
) -> tuple[dict[WorkKey, BoundWork], dict[int, Work]]:
    """The tasks, and the steps after the merge by parity. There are none if the synchronising task includes the step,
    after a wait for the merge or, with the only learner of a run, after the merge itself."""
    arithmetic, clipped, alone = merging.arithmetic, merging.clips_own, merging.learners == 1
    tasks: dict[WorkKey, BoundWork] = {}
    steps: dict[int, Work] = {}

    def bind(purpose: Purpose, parity: int, following: int, end: Sequence[BoundStep]) -> None:
        weights = base.buffers[parity] if replica.weights is None else replica.weights
        statistics = replica.statistics[parity], replica.statistics[following]
        vectors = memory.vectors(weights, replica.gradient, statistics)
        for buffer, bound in enumerate(bound_work(assembly, assembly.training, memory, vectors, end)):
            tasks[purpose, parity, buffer] = bound

    for parity in PARITIES:
        vectors = {**base.vectors(parity), **replica.vectors()}
        end: list[BoundStep] = []
        step = arithmetic.step((), updates["step"], vectors, clipped=clipped)
        if merging.rule.sends == "new weights":
            end, step = step, merging.reply(updates["reply"], vectors)
        if alone:
            end = [*end, *merge_steps(merging, updates["merge"], [replica], base, parity), *step]
        elif _waits_inside(assembly, merging):
            end = [BoundStep("wait merged", WaitFor(merged)), *step]
        else:
            steps[parity] = new_work(assembly, step)
        bind("synchronise", parity, 1 - parity, end)
        if assembly.setting.clock.tau > 1:
            bind("local", parity, parity, arithmetic.step((), updates["local"], replica.vectors(), clipped=clipped))
    return tasks, steps


def _waits_inside(assembly: Assembly, merging: Merging) -> bool:
    """Whether a synchronising task contains the wait for the merge, which then is submitted before it: the merge does
    not depend on the task. If the host adds up before the merge, the task is submitted first, and runs meanwhile."""
    return merging.rule.sends == "weights" and merging.learners > 1 and not assembly.setting.sums_through_host
