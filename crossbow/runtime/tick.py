"""The clock tick as task lists: what a learner does between its forward and backward kernels to average models.

Sets of flags, each holding the last tick for which something is done, keep the order without a lock:

    ready[i]        what learner i contributes to this tick will not change until the tick is merged
    contributed[i]  learner i has added up its slice of its device's contributions (several devices only)
    measured[i]     learner i has squared its slice of the mean gradient (rules that send gradients and clip them)
    merged[p]       party p has written its part of the next z

SMA, one device; every learner is a party, for a slice of z:

    signal ready → forward → wait ready (all) → merge own slice → signal merged → backward → wait merged (all) → step

(A large weight gradient that its kernel offers in cache-sized blocks is computed in the step, block by block. Where
numbers are checked, those that a sum, a merge or a step writes are looked through at once, before it is signalled.)
So z is averaged beside the forward pass, and the waits are over before they begin unless learners drift by half a
task. A rule that sends gradients merges after the backward pass instead:

    forward → backward → signal ready → wait ready → merge own slice → signal merged → wait merged

and one that sends the weights behind the step, which then become others:

    forward → backward → step → signal ready → wait ready → merge own slice → signal merged → wait merged → reply

With several devices the learners add up their device's contributions, and one party, the synchroniser, does the rest:

    wait contributed (all) → all-reduce → merge on every device → signal merged

A gradient is clipped by its norm as a whole, so blocks are not used, and the numbers of an update wait for the norm: no
vector is written for it. Where weights are sent, each learner clips its own gradient:

    … → backward → wait merged (all) → norm → clip → step

Where gradients are sent, it is the mean that is clipped, as with one learner and a larger batch; several devices leave
that to the synchroniser, behind the all-reduce:

    … → wait ready → squares of own slice → signal measured → wait measured (all) → clip → merge own slice → …
    wait contributed (all) → all-reduce → norm → clip → merge on every device → signal merged
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from crossbow.compile import BoundBlock, BoundStep, ModelLayout, Parts
from crossbow.kernels.interface import PlainStorage, State
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import CheckFinite, ClipCoefficients, LinearCombination, Signal, SquaredNorm, Wait
from crossbow.runtime.coefficients import Coefficients, PacedUpdate
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.solver import SolverConf, Update
from crossbow.solver.update import Terms, total
from crossbow.synch import BarrierRule, Collective, Rule
from crossbow.types import Array

T = TypeVar("T")


class Flags:
    """The flags of one run. A failure raises `abort`, which ends every wait."""

    def __init__(self, learners: int, parties: int) -> None:
        self.ready = np.full(learners, -1, np.int64)
        self.contributed = np.full(learners, -1, np.int64)
        self.measured = np.full(learners, -1, np.int64)
        self.squares = np.zeros(learners)
        """What learner i has measured."""
        self.merged = np.full(parties, -1, np.int64)
        self.abort = np.zeros(1, np.int64)

    def reset(self, tick: int) -> None:
        """Everything before `tick` is done."""
        for flags in (self.ready, self.contributed, self.measured, self.merged):
            flags[:] = tick - 1
        self.abort[:] = 0


WRITTEN = {
    "weights": "new value of",
    "velocity": "velocity of",
    "base_next": "base model's new value of",
    "base_velocity": "base model's velocity of",
    "mean": "mean of what learners send of",
    "base": "base model's new value of",
    "taken": "copy of the base model's",
}
"""What updates write, in words."""


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
    runs: Sequence[tuple[slice, float]] = ()
    """Ranges of the vectors with one multiplier of the learning rate, where not all is one; see `ModelLayout`."""
    checked: ModelLayout | None = None
    """How variables lie in the vectors, where what updates write is looked through (`SystemConf.check_numerics`)."""
    to_device: Callable[[Array], Array] | None = None
    """Puts numbers where kernels read them, where that is not the host's memory."""
    kept: Sequence[slice] = ()
    """Ranges of the vectors, in order, that every learner keeps to itself."""

    def array(self, numbers: Sequence[float]) -> Array:
        """Numbers as kernels read and write them, in double precision."""
        made = np.array(numbers, np.float64)
        return made if self.to_device is None else self.to_device(made)

    @property
    def barrier(self) -> BarrierRule:
        """The rule, where it has a barrier."""
        assert isinstance(self.rule, BarrierRule)
        return self.rule

    def mean(self, name: str, learners: int) -> dict[str, float]:
        """The mean of all learners' vectors of this name (`name0`, …): the part of so many of them."""
        return total(name, [1 / self.learners] * learners)

    @property
    def multipliers(self) -> tuple[float, ...]:
        return tuple(dict.fromkeys(multiplier for _, multiplier in self.runs)) or (1.0,)

    @property
    def clips(self) -> str:
        """Which gradient is clipped: "own", "mean", or "" where none is."""
        if self.solver.clip_gradient_norm is None:
            return ""
        return "mean" if self.rule.sends_gradient else "own"

    @property
    def in_blocks(self) -> bool:
        """Whether weight gradients may be used block by block, and never be there as a whole."""
        return not self.rule.sends_gradient and not self.clips

    def wait(self, flags: Array, state: Array) -> list[BoundStep]:
        buffers = {"flags": flags, "abort": self.flags.abort, "state": state}
        return [BoundStep("wait", call) for call in self.library.prepare(Wait()).bind(buffers)]

    def signal(self, flags: Array, index: int, state: Array) -> list[BoundStep]:
        buffers = {"flag": flags[index : index + 1], "state": state}
        return [BoundStep("signal", call) for call in self.library.prepare(Signal()).bind(buffers)]

    def combine(self, name: str, update: Update, vectors: dict[str, Array], coefficients: Array) -> list[BoundStep]:
        if not update.steps:
            return []
        kernel = self.library.prepare(LinearCombination(update.assignments, self.dtype, update.signs))
        buffers = {vector: vectors[vector] for vector in update.vectors}
        return [BoundStep(name, call) for call in kernel.bind({**buffers, "coefficients": coefficients})]

    def adjust(self, name: str, paced: PacedUpdate, vectors: dict[str, Array], place: slice) -> list[BoundStep]:
        """An update of the vectors, given cut to that place, with what takes its place where they are kept."""
        if paced.alone is None:
            return self._adjust(name, paced, vectors, place)
        steps: list[BoundStep] = []
        for part, update in self._parts(paced, paced.alone, place):
            cut = {vector: values[_cut(part, place)] for vector, values in vectors.items()}
            steps += self._adjust(name, update, cut, part)
        return steps

    def _parts(self, shared: PacedUpdate, alone: PacedUpdate, place: slice) -> list[tuple[slice, PacedUpdate]]:
        """The pieces of a place, and what is done to each."""
        kept = [_both(each, place) for each in _overlapping(self.kept, place, lambda each: each)]
        rest = _without(place, kept)
        return [*((piece, alone) for piece in kept), *((piece, shared) for piece in rest)]

    def _adjust(self, name: str, paced: PacedUpdate, vectors: dict[str, Array], place: slice) -> list[BoundStep]:
        """One combination for every learning rate in that place."""
        steps: list[BoundStep] = []
        if len(paced.numbers) == 1:
            steps += self.combine(name, paced.update, vectors, *paced.numbers.values())
        else:
            for run, multiplier in _overlapping(self.runs, place, lambda pair: pair[0]):
                part = _cut(run, place)
                cut = {vector: values[part] for vector, values in vectors.items()}
                steps += self.combine(name, paced.update, cut, paced.numbers[multiplier])
        return [*steps, *self.look_through(name, [target for target, _ in paced.update.steps], vectors, place)]

    def look_through(
        self, name: str, written: Sequence[str], vectors: dict[str, Array], place: slice
    ) -> list[BoundStep]:
        """Behind what writes vectors that are cut to that place: look for numbers that are not finite, by variable."""
        steps: list[BoundStep] = []
        segments = () if self.checked is None else tuple(self.checked)
        found = _overlapping(segments, place, lambda segment: segment.place)
        for target, segment in itertools.product(written, found):
            part = _cut(segment.place, place)
            what, values = f"{WRITTEN.get(target, target)} {segment.name!r}", vectors[target][part]
            if values.size == segment.storage.elements and isinstance(segment.storage, PlainStorage):
                values = values.reshape(segment.spec.shape)
            else:
                start = part.start + place.start - segment.offset
                what += f" (elements {start} to {start + values.size - 1} as it lies in memory)"
            steps += [BoundStep(name, call) for call in self.library.prepare(CheckFinite(what)).bind({"value": values})]
        return steps

    def combine_statistics(self, terms: Terms, vectors: dict[str, Array]) -> list[BoundStep]:
        """The mean of running statistics, or a part of it, looked through for numbers that are not finite."""
        update = Update((("statistics", terms),))
        steps = self.combine("statistics", update, vectors, self.array(update.coefficients))
        if self.checked is not None:
            kernel = self.library.prepare(CheckFinite("learners' mean of the running statistics"))
            steps += [BoundStep("statistics", call) for call in kernel.bind({"value": vectors["statistics"]})]
        return steps

    def square(self, terms: Terms, vectors: dict[str, Array], square: Array) -> list[BoundStep]:
        """The squared norm of a combination of gradients."""
        kernel = self.library.prepare(SquaredNorm(tuple(terms), self.dtype))
        buffers = {**{term: vectors[term] for term in terms}, "coefficients": self.array(list(terms.values()))}
        return [BoundStep("gradient norm", call) for call in kernel.bind({**buffers, "square": square})]

    def clip(
        self, paced: PacedUpdate, gradients: Collection[str], squares: Array
    ) -> tuple[list[BoundStep], PacedUpdate]:
        """Calls that shorten the gradients in an update as the sum of the squares demands, and the update to use."""
        assert self.solver.clip_gradient_norm is not None
        marks = tuple(term in gradients for _, terms in paced.update.steps for term in terms)
        kernel = self.library.prepare(ClipCoefficients(self.solver.clip_gradient_norm, marks))
        clipped = {multiplier: self.array([0.0] * numbers.size) for multiplier, numbers in paced.numbers.items()}
        steps: list[BoundStep] = []
        for multiplier, numbers in paced.numbers.items():
            buffers = {"squares": squares, "coefficients": numbers, "clipped_coefficients": clipped[multiplier]}
            steps += [BoundStep("clip", call) for call in kernel.bind(buffers)]
        made = replace(paced, numbers=clipped)
        if paced.alone is not None:
            more, alone = self.clip(paced.alone, gradients, squares)
            steps, made = [*steps, *more], replace(made, alone=alone)
        return steps, made

    def step(self, blocks: Sequence[BoundBlock], paced: PacedUpdate, vectors: dict[str, Array]) -> list[BoundStep]:
        """A learner's step. Gradients that come in blocks are computed here, and used while they are in the cache."""
        steps: list[BoundStep] = []
        if self.clips == "own":
            squares = self.array([0.0])
            clipping, paced = self.clip(paced, ("gradient",), squares)
            steps += [*self.square({"gradient": 1.0}, vectors, squares), *clipping]
        for block in blocks:
            steps += [BoundStep(block.operator, call) for call in block.calls]
            part = {name: vector[block.place] for name, vector in vectors.items()}
            steps += self.adjust("optimiser", paced, {**part, "gradient": block.gradient}, block.place)
        whole = slice(0, vectors["gradient"].size)
        for piece in _without(whole, sorted((block.place for block in blocks), key=lambda place: place.start)):
            part = {name: vector[piece] for name, vector in vectors.items()}
            steps += self.adjust("optimiser", paced, part, piece)
        return steps

    def reply(self, paced: PacedUpdate, vectors: dict[str, Array]) -> list[BoundStep]:
        """What a learner does behind the merge."""
        used = {name: vectors[name] for name in paced.update.vectors}
        return self.adjust("reply", paced, used, slice(0, vectors["base"].size))


def _cut(whole: slice, place: slice) -> slice:
    """What of a range lies in a place, counted from the beginning of that. It is empty where start ≥ stop."""
    return slice(max(whole.start, place.start) - place.start, min(whole.stop, place.stop) - place.start)


def _both(whole: slice, place: slice) -> slice:
    """What two ranges that overlap have in common."""
    return slice(max(whole.start, place.start), min(whole.stop, place.stop))


def _overlapping(items: Sequence[T], place: slice, of: Callable[[T], slice]) -> list[T]:
    """Those of the items whose ranges (`of`), which are disjoint and in order, overlap a place.

    >>> _overlapping([slice(0, 4), slice(4, 4), slice(4, 8), slice(8, 9)], slice(3, 8), lambda item: item)
    [slice(0, 4, None), slice(4, 8, None)]
    """
    first = bisect_right(items, place.start, key=lambda item: of(item).stop)
    last = bisect_left(items, place.stop, first, key=lambda item: of(item).start)
    return [item for item in items[first:last] if of(item).start < of(item).stop]


def _without(whole: slice, parts: Sequence[slice]) -> list[slice]:
    """What is left of a range without some parts of it, which are disjoint and in order.

    >>> _without(slice(0, 9), [slice(0, 2), slice(2, 4), slice(6, 7)])
    [slice(4, 6, None), slice(7, 9, None)]
    """
    bounds = [whole.start, *(bound for part in parts for bound in (part.start, part.stop)), whole.stop]
    return [slice(start, stop) for start, stop in zip(bounds[::2], bounds[1::2], strict=True) if start < stop]


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
        expand = averaging.mean("sent", len(place.on_device))
    return Coefficients(
        averaging.barrier, averaging.solver, averaging.learners, averaging.multipliers, expand, bool(averaging.kept)
    )


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
    step = averaging.step(parts.blocks, coefficients.step, vectors)
    if averaging.rule.sends_gradient:
        return [*forward, *backward, *signal_ready, *merging, *wait_merged, *step]
    if averaging.barrier.sends == "new weights":
        reply = averaging.reply(coefficients.reply, vectors)
        return [*forward, *backward, *step, *signal_ready, *merging, *wait_merged, *reply]
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
    sent = {f"sent{i}": replica.vectors()[averaging.barrier.sent_vector] for i, replica in enumerate(replicas)}
    share = place.slice(next(iter(sent.values())).size)
    vectors = {name: vector[share] for name, vector in {**base.vectors(parity), **sent}.items()}
    first, last = place.on_device[0], place.on_device[-1] + 1
    waiting = averaging.wait(flags.ready[first:last], state)
    waiting += _merge_statistics(averaging, place, replicas, base, parity)
    if averaging.devices == 1:
        paced = coefficients.merge
        if averaging.clips == "mean":
            mean, index = averaging.mean("sent", len(place.on_device)), place.learner
            waiting += averaging.square(mean, vectors, flags.squares[index : index + 1])
            waiting += [*averaging.signal(flags.measured, index, state), *averaging.wait(flags.measured, state)]
            clipping, paced = averaging.clip(paced, tuple(mean), flags.squares)
            waiting += clipping
        merge = averaging.adjust("average", paced, vectors, share)
        return [*waiting, *merge, *averaging.signal(flags.merged, place.learner, state)]
    update = Update((("mean", averaging.mean("sent", len(place.on_device))),))
    summing = averaging.combine("sum of the device", update, vectors, np.array(update.coefficients))
    return [*waiting, *summing, *averaging.signal(flags.contributed, place.learner, state)]


def _merge_statistics(
    averaging: Averaging, place: Place, replicas: Sequence[Replica], base: BaseModel, parity: int
) -> list[BoundStep]:
    """This learner's slice of the mean of all learners' statistics, or of its device's part of that mean. As the vector
    that is sent, they are those before the task, or, where gradients or new weights are sent, those after it.

    Between several devices the part has a place of its own: learners of this device may begin a tick when one of
    another device has failed in the tick before, and the statistics before that one, in the same parity, are needed."""
    which = statistics_after(averaging.barrier, parity)
    share = place.slice(base.statistics[0].size)
    if share.start == share.stop:
        return []
    vectors = {f"observed{i}": replica.statistics[which][share] for i, replica in enumerate(replicas)}
    target = base.statistics[1 - parity] if base.statistics_mean is None else base.statistics_mean
    vectors["statistics"] = target[share]
    return averaging.combine_statistics(averaging.mean("observed", len(replicas)), vectors)


def statistics_after(rule: BarrierRule, parity: int) -> int:
    """Which of a learner's statistics belong to what it sends in a tick of this parity: with weights, which are those
    from before its last task, also the statistics from before; with gradients and new weights those after it."""
    return parity if rule.sends == "weights" else 1 - parity


def local_task(
    averaging: Averaging,
    parts: Parts,
    own: Replica,
    coefficients: Coefficients,
) -> list[BoundStep]:
    """A learner's task that does not synchronise (all but the last of τ)."""
    step = averaging.step(parts.blocks, coefficients.local, own.vectors())
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
    means = [base.mean for base in bases if base.mean is not None]
    steps = averaging.wait(averaging.flags.contributed, state)
    steps.append(BoundStep("all-reduce", lambda: collective.all_reduce(means)))
    statistics = [base.statistics_mean for base in bases if base.statistics_mean is not None]
    if bases[0].statistics[0].size:
        steps.append(BoundStep("all-reduce", lambda: collective.all_reduce(statistics)))
        for base, mean in zip(bases, statistics, strict=True):
            vectors = {"statistics": base.statistics[1 - parity], "mean": mean}
            steps += averaging.combine_statistics({"mean": 1.0}, vectors)
    paced, whole = coefficients.merge, slice(0, means[0].size)
    for base in bases:
        steps += averaging.look_through("all-reduce", ("mean",), base.vectors(parity), whole)
    if averaging.clips == "mean":
        squares = np.zeros(1)
        clipping, paced = averaging.clip(paced, ("mean",), squares)
        steps += [*averaging.square({"mean": 1.0}, {"mean": means[0]}, squares), *clipping]
    for base in bases:
        steps += averaging.adjust("average", paced, base.vectors(parity), whole)
    return [*steps, *averaging.signal(averaging.flags.merged, 0, state)]


def new_state() -> Array:
    return np.zeros(State.SIZE, np.int64)
