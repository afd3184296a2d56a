"""The clock tick as task lists: a learner averages models between its forward and backward kernels.

Flags (`crossbow.runtime.flags`) keep the order without a lock. With SMA on one device, every learner merges one slice
of z:

    signal ready → forward → wait ready (all) → merge own slice → signal merged → backward → wait merged (all) → step

(If a kernel offers a large weight gradient in cache-sized blocks, the step computes it block by block. With
`check_numerics`, the results of a sum, a merge or a step are checked at once, before they are signalled.)
So the averaging overlaps with the forward pass, and learners wait only if they differ by half a task. A rule that sends
gradients merges after the backward pass instead:

    forward → backward → signal ready → wait ready → merge own slice → signal merged → wait merged

and a rule that sends the weights merges after the step, and then changes them:

    forward → backward → step → signal ready → wait ready → merge own slice → signal merged → wait merged → reply

With several devices, or ranks without shared memory, a synchroniser computes the mean of all learners
(`synchroniser.py`). In a chain, it waits for `ready` and adds up all contributions. In a tree, the learners add up the
contributions of their device and signal `contributed` instead of `merged`.

Clipping limits the norm of the whole gradient, so no blocks are used. It changes the coefficients of an update, which
wait for the norm, and writes no vector. If weights are sent, each learner clips its own gradient:

    … → backward → wait merged (all) → norm → clip → step

If gradients are sent, their mean is clipped, as with one learner and a larger batch. With several devices the
synchroniser does this:

    … → wait ready → squares of own slice → signal measured → wait measured (all) → clip → merge own slice → …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossbow.compile import BoundStep, Parts, share_of
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.coefficients import BoundUpdate, Formulas
from crossbow.runtime.cpu.coefficients import HostNumbers
from crossbow.runtime.cpu.learner import CpuLearner
from crossbow.runtime.cpu.memory import CpuLearnerMemory
from crossbow.runtime.cpu.stream import CpuStream, Signals
from crossbow.runtime.cpu.work import BoundTask, bound_task
from crossbow.runtime.merging import Merging
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.task import PARITIES, Report, TaskKey
from crossbow.types import Array


@dataclass(frozen=True)
class Share:
    """A learner and the learners that share its base model: those of its device or, if ranks share memory, of all
    ranks. Each of them merges a part of the base model."""

    learner: int
    together: tuple[int, ...]

    @property
    def index(self) -> int:
        """The learner's position among these learners."""
        return self.together.index(self.learner)

    def slice(self, elements: int) -> slice:
        """This learner's share of a vector of the base model."""
        return share_of(elements, self.index, len(self.together))


@dataclass(frozen=True)
class TickSteps:
    """Creates the steps of a learner's tasks."""

    merging: Merging
    signals: Signals
    share: Share
    base: BaseModel
    replicas: Sequence[Replica]
    """Replicas of the learners in `share`, in order."""
    updates: Mapping[str, BoundUpdate]
    state: Array

    @property
    def own(self) -> Replica:
        """The learner's replica."""
        return self.replicas[self.share.index]

    def synchronising(self, parts: Parts, parity: int) -> list[BoundStep]:
        """Steps of the task that ends a tick."""
        forward, backward, sends = parts.forward, parts.backward, self.merging.rule.sends
        merging, flags = self._merge(parity), self.signals.flags
        signal_ready = self.signals.signal("ready", flags.ready, self.share.learner, self.state)
        wait_merged = self.signals.wait("merged", flags.merged, self.state)
        vectors = {**self.base.vectors(parity), **self.own.vectors()}
        step = self._step(parts, "step", vectors)
        if sends == "gradient":
            return [*forward, *backward, *signal_ready, *merging, *wait_merged, *step]
        if sends == "new weights":
            reply = self.merging.reply(self.updates["reply"], vectors)
            return [*forward, *backward, *step, *signal_ready, *merging, *wait_merged, *reply]
        return [*signal_ready, *forward, *merging, *backward, *wait_merged, *step]

    def local(self, parts: Parts) -> list[BoundStep]:
        """Steps of a task that does not synchronise: one of the first τ − 1 tasks of a tick."""
        return [*parts.forward, *parts.backward, *self._step(parts, "local", self.own.vectors())]

    def _step(self, parts: Parts, name: str, vectors: dict[str, Array]) -> list[BoundStep]:
        clipped = self.merging.clips_own
        return self.merging.arithmetic.step(parts.blocks, self.updates[name], vectors, clipped=clipped)

    def _merge(self, parity: int) -> list[BoundStep]:
        """Wait for the learners that share the base model, then compute a slice of the merge or of the device's sum."""
        merging, arithmetic, flags, learner = (
            self.merging,
            self.merging.arithmetic,
            self.signals.flags,
            self.share.learner,
        )
        if merging.adds_parts and merging.chained:
            return []
        sent = merging.sent(self.replicas)
        share = self.share.slice(self.base.buffers[0].size)
        vectors = {name: vector[share] for name, vector in {**self.base.vectors(parity), **sent}.items()}
        first, last = self.share.together[0], self.share.together[-1] + 1
        steps = self.signals.wait("ready", flags.ready[first:last], self.state, averages=True)
        steps += self._merge_statistics(parity)
        if merging.adds_parts:
            steps += merging.sum_of_device(vectors, len(self.replicas))
            return [*steps, *self.signals.signal("contributed", flags.contributed, learner, self.state)]
        if self.base.step_count is not None:  # each learner counts the steps of its slice
            vectors["base_step_count"] = self.base.step_count[learner : learner + 1]
        counted, merge = arithmetic.count("average", self.updates["merge"], vectors)
        steps += counted
        if merging.clips_mean:
            mean = merging.mean("sent", len(self.replicas))
            steps += arithmetic.square(mean, vectors, flags.squares[learner : learner + 1])
            steps += self.signals.signal("measured", flags.measured, learner, self.state)
            steps += self.signals.wait("measured", flags.measured, self.state, averages=True)
            clipping, merge = arithmetic.clip(merge, ("mean",) if merging.mean_first else tuple(mean), flags.squares)
            steps += clipping
        steps += arithmetic.adjust("average", merge, vectors, share)
        return [*steps, *self.signals.signal("merged", flags.merged, learner, self.state)]

    def _merge_statistics(self, parity: int) -> list[BoundStep]:
        """Compute this learner's slice of the mean of all learners' statistics, or of its device's part of that mean.

        With several devices, the part has a separate vector: learners of this device may begin a tick although a
        learner of another device failed in the previous one. Recovery then needs the statistics of the previous tick,
        which have the same parity."""
        share = self.share.slice(self.base.statistics[0].size)
        if share.start == share.stop:
            return []
        mean = self.base.statistics_mean
        target = self.base.statistics[1 - parity] if mean is None else mean
        return self.merging.mean_statistics(self.replicas, parity, target, share)


def tick_learner(
    assembly: Assembly,
    merging: Merging,
    formulas: Formulas,
    share: Share,
    number: int,
    device: int,
    stream: CpuStream,
    report: Report,
) -> CpuLearner:
    """Create a learner with its task lists of both parities. number: its number among those of all ranks."""
    numbers, memory = HostNumbers(formulas.length), CpuLearnerMemory(assembly)
    steps = TickSteps(
        merging,
        Signals.of(assembly),
        share,
        assembly.bases[device],
        [(assembly.all_replicas or assembly.replicas)[other] for other in share.together],
        formulas.over(numbers.array),
        memory.state,
    )
    tasks = _bind(assembly, steps, memory, assembly.tested(device))
    return CpuLearner(
        number,
        stream,
        tasks,
        numbers,
        memory.state,
        assembly.flags,
        report,
        recorder=assembly.setting.recorder,
    )


def _bind(
    assembly: Assembly, steps: TickSteps, memory: CpuLearnerMemory, tested: BaseModel
) -> dict[TaskKey, BoundTask]:
    """A learner's task lists, for ticks of both parities. They share the calls whose buffers are the same in both."""
    setting, training, base, own = assembly.setting, assembly.training, steps.base, steps.own
    tasks: dict[TaskKey, BoundTask] = {}
    trained: Parts | None = None
    checked: Parts | None = None
    for parity in PARITIES:
        weights = base.buffers[parity] if own.weights is None else own.weights
        present, following = own.statistics[parity], own.statistics[1 - parity]
        bound = memory.of(training, weights, own.gradient, (present, following))
        trained = training.program.bind(bound, in_blocks=setting.in_blocks, like=trained)
        tasks["synchronise", parity] = bound_task(training, bound, steps.synchronising(trained, parity))
        if setting.clock.tau > 1:
            bound = memory.of(training, weights, own.gradient, (present, present))
            parts = training.program.bind(bound, in_blocks=setting.in_blocks, like=trained)
            tasks["local", parity] = bound_task(training, bound, steps.local(parts))
        if assembly.check is not None:
            observed = tested.statistics[parity]
            bound = memory.of(assembly.check, tested.buffers[parity], own.gradient, (observed, observed))
            checked = assembly.check.program.bind(bound, like=checked)
            tasks["check", parity] = bound_task(assembly.check, bound, checked.forward)
    return tasks
