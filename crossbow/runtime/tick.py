"""The clock tick as task lists: what a learner does between its forward and backward kernels to average models.

Three sets of flags, each holding the last tick for which something is done, keep the order without a lock:

    ready[i]        what learner i contributes to this tick will not change until the tick is merged
    contributed[i]  learner i has added up its slice of its device's contributions (several devices only)
    merged[p]       party p has written its part of the next z

SMA, one device; every learner is a party, for a slice of z:

    signal ready → forward → wait ready (all) → merge own slice → signal merged → backward → wait merged (all) → step

(A large weight gradient that its kernel offers in cache-sized blocks is computed in the step, block by block.)
So z is averaged beside the forward pass, and the waits are over before they begin unless learners drift by half a
task. A rule that sends gradients merges after the backward pass instead:

    forward → backward → signal ready → wait ready → merge own slice → signal merged → wait merged

With several devices the learners add up their device's contributions, and one party, the synchroniser, does the rest:

    wait contributed (all) → all-reduce → merge on every device → signal merged
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from crossbow.compile import BoundBlock, BoundStep, Parts
from crossbow.conf import SolverConf
from crossbow.kernels.interface import KernelLibrary, State
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.solver import Update
from crossbow.solver.update import total
from crossbow.synch import Collective, Rule
from crossbow.types import Array


class Flags:
    """The flags of one run. A failure raises `abort`, which ends every wait."""

    def __init__(self, learners: int, parties: int) -> None:
        self.ready = np.full(learners, -1, np.int64)
        self.contributed = np.full(learners, -1, np.int64)
        self.merged = np.full(parties, -1, np.int64)
        self.abort = np.zeros(1, np.int64)

    def reset(self, tick: int) -> None:
        """Everything before `tick` is done."""
        for flags in (self.ready, self.contributed, self.merged):
            flags[:] = tick - 1
        self.abort[:] = 0


@dataclass(frozen=True)
class Averaging:
    """What the pieces of a tick are made of."""

    library: KernelLibrary
    rule: Rule
    solver: SolverConf
    flags: Flags
    learners: int
    """Of all devices."""
    devices: int
    dtype: np.dtype[np.generic]

    def wait(self, flags: Array, state: Array) -> list[BoundStep]:
        buffers = {"flags": flags, "abort": self.flags.abort, "state": state}
        return [BoundStep("wait", call) for call in self.library.wait().bind(buffers)]

    def signal(self, flags: Array, index: int, state: Array) -> list[BoundStep]:
        buffers = {"flag": flags[index : index + 1], "state": state}
        return [BoundStep("signal", call) for call in self.library.signal().bind(buffers)]

    def combine(self, name: str, update: Update, vectors: dict[str, Array], coefficients: Array) -> list[BoundStep]:
        if not update.steps:
            return []
        kernel = self.library.linear_combination(update.assignments, self.dtype)
        buffers = {vector: vectors[vector] for vector in update.vectors}
        return [BoundStep(name, call) for call in kernel.bind({**buffers, "coefficients": coefficients})]

    def step(
        self, blocks: Sequence[BoundBlock], update: Update, vectors: dict[str, Array], coefficients: Array
    ) -> list[BoundStep]:
        """A learner's step. Gradients that come in blocks are computed here, and used while they are in the cache."""
        steps: list[BoundStep] = []
        rest = [slice(0, vectors["gradient"].size)]
        for block in blocks:
            steps += [BoundStep(block.operator, call) for call in block.calls]
            part = {name: vector[block.place] for name, vector in vectors.items()}
            steps += self.combine("optimiser", update, {**part, "gradient": block.gradient}, coefficients)
            rest = [piece for whole in rest for piece in _without(whole, block.place)]
        for piece in rest:
            part = {name: vector[piece] for name, vector in vectors.items()}
            steps += self.combine("optimiser", update, part, coefficients)
        return steps


def _without(whole: slice, part: slice) -> list[slice]:
    """What is left of a range without a part of it."""
    if part.stop <= whole.start or whole.stop <= part.start:
        return [whole]
    pieces = [slice(whole.start, part.start), slice(part.stop, whole.stop)]
    return [piece for piece in pieces if piece.start < piece.stop]


@dataclass
class Coefficients:
    """The numbers of an owner's updates, rewritten when the learning rate changes: kernels read them at every call."""

    rule: Rule
    solver: SolverConf
    learners: int
    expand: dict[str, float] = field(default_factory=dict)
    """What `total` stands for in the merge of a single device."""
    rate: float = float("nan")

    def __post_init__(self) -> None:
        self.step, self.local, self.merge = (np.array(update.coefficients) for update in self.updates(1.0))

    def updates(self, rate: float) -> tuple[Update, Update, Update]:
        """The synchronising step, the local step, and the merge."""
        rule, solver, learners = self.rule, self.solver, self.learners
        merge = rule.merge(solver, rate, learners)
        return (
            rule.local_step(solver, rate, learners, synchronises=True),
            rule.local_step(solver, rate, learners, synchronises=False),
            merge.expand("total", self.expand) if self.expand else merge,
        )

    def set_rate(self, rate: float) -> None:
        if rate != self.rate:
            updates = self.updates(rate)
            for values, update in zip((self.step, self.local, self.merge), updates, strict=True):
                values[:] = update.coefficients
            self.rate = rate


@dataclass(frozen=True)
class Place:
    """A learner's number, and the numbers of all learners on its device."""

    learner: int
    on_device: tuple[int, ...]

    def slice(self, elements: int, alignment: int = 16) -> slice:
        """This learner's share of a vector of its device."""
        index, count = self.on_device.index(self.learner), len(self.on_device)
        bounds = [elements // alignment * i // count * alignment for i in (index, index + 1)]
        return slice(bounds[0], elements if index + 1 == count else bounds[1])


def learner_coefficients(averaging: Averaging, place: Place) -> Coefficients:
    expand: dict[str, float] = {}
    if averaging.devices == 1:
        expand = total("sent", _weights(averaging, place))
    return Coefficients(averaging.rule, averaging.solver, averaging.learners, expand)


def _weights(averaging: Averaging, place: Place) -> list[float]:
    return [averaging.rule.weight(averaging.learners)] * len(place.on_device)


def synchronising_task(
    averaging: Averaging,
    place: Place,
    parts: Parts,
    replicas: Sequence[Replica],
    base: BaseModel,
    parity: int,
    coefficients: Coefficients,
    state: Array,
) -> list[BoundStep]:
    """A learner's task that ends a tick. `replicas`: those of its device, in order."""
    forward, backward = parts.forward, parts.backward
    own = replicas[place.on_device.index(place.learner)]
    merging = _merge(averaging, place, replicas, base, parity, coefficients, state)
    signal_ready = averaging.signal(averaging.flags.ready, place.learner, state)
    wait_merged = averaging.wait(averaging.flags.merged, state)
    vectors = {**base.vectors(parity), **own.vectors()}
    step = averaging.step(parts.blocks, coefficients.updates(1.0)[0], vectors, coefficients.step)
    if averaging.rule.sends == "gradient":
        return [*forward, *backward, *signal_ready, *merging, *wait_merged, *step]
    return [*signal_ready, *forward, *merging, *backward, *wait_merged, *step]


def _merge(
    averaging: Averaging,
    place: Place,
    replicas: Sequence[Replica],
    base: BaseModel,
    parity: int,
    coefficients: Coefficients,
    state: Array,
) -> list[BoundStep]:
    """Wait for the device's learners, then this learner's slice of the merge, or of the device's sum."""
    flags = averaging.flags
    sent = {f"sent{i}": replica.vectors()[averaging.rule.sends] for i, replica in enumerate(replicas)}
    share = place.slice(next(iter(sent.values())).size)
    vectors = {name: vector[share] for name, vector in {**base.vectors(parity), **sent}.items()}
    first, last = place.on_device[0], place.on_device[-1] + 1
    waiting = averaging.wait(flags.ready[first:last], state)
    waiting += _merge_statistics(averaging, place, replicas, base, parity)
    if averaging.devices == 1:
        merge = averaging.combine("average", coefficients.updates(1.0)[2], vectors, coefficients.merge)
        return [*waiting, *merge, *averaging.signal(flags.merged, place.learner, state)]
    update = Update((("total", total("sent", _weights(averaging, place))),))
    summing = averaging.combine("sum of the device", update, vectors, np.array(update.coefficients))
    return [*waiting, *summing, *averaging.signal(flags.contributed, place.learner, state)]


def _merge_statistics(
    averaging: Averaging, place: Place, replicas: Sequence[Replica], base: BaseModel, parity: int
) -> list[BoundStep]:
    """This learner's slice of the mean of all learners' statistics, or of its device's part of that mean. As the vector
    that is sent, they are those before the task, or, where gradients are sent, those after it."""
    which = 1 - parity if averaging.rule.sends == "gradient" else parity
    share = place.slice(base.statistics[0].size)
    if share.start == share.stop:
        return []
    update = Update((("statistics", total("observed", [1 / averaging.learners] * len(replicas))),))
    vectors = {f"observed{i}": replica.statistics[which][share] for i, replica in enumerate(replicas)}
    vectors["statistics"] = base.statistics[1 - parity][share]
    return averaging.combine("statistics", update, vectors, np.array(update.coefficients))


def local_task(
    averaging: Averaging,
    parts: Parts,
    own: Replica,
    coefficients: Coefficients,
) -> list[BoundStep]:
    """A learner's task that does not synchronise (all but the last of τ)."""
    step = averaging.step(parts.blocks, coefficients.updates(1.0)[1], own.vectors(), coefficients.local)
    return [*parts.forward, *parts.backward, *step]


def synchroniser_task(
    averaging: Averaging,
    collective: Collective,
    bases: Sequence[BaseModel],
    parity: int,
    coefficients: Coefficients,
    state: Array,
) -> list[BoundStep]:
    """The tick's task between several devices: add up their sums and merge on each."""
    totals = [base.total for base in bases if base.total is not None]
    steps = averaging.wait(averaging.flags.contributed, state)
    steps.append(BoundStep("all-reduce", lambda: collective.all_reduce(totals)))
    statistics = [base.statistics[1 - parity] for base in bases]
    if statistics[0].size:
        steps.append(BoundStep("all-reduce", lambda: collective.all_reduce(statistics)))
    for base in bases:
        merge = coefficients.updates(1.0)[2]
        steps += averaging.combine("average", merge, base.vectors(parity), coefficients.merge)
    return [*steps, *averaging.signal(averaging.flags.merged, 0, state)]


def new_state() -> Array:
    return np.zeros(State.SIZE, np.int64)
