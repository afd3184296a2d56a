"""Vector arithmetic of a run: updates of flat vectors as calls of kernels, the same on every device.

A vector of variables may have ranges with separate updates: ranges with their own multiplier of the learning rate,
frozen variables, and the learners' local variables. If numbers are checked, each variable is searched for values that
are not finite as soon as an update has written it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from crossbow.compile import BoundBlock, BoundStep, ModelLayout
from crossbow.kernels.interface import PlainStorage
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import (
    AdaptiveStep,
    CheckFinite,
    ClipCoefficients,
    CountStep,
    LinearCombination,
    SquaredNorm,
)
from crossbow.runtime.coefficients import BoundUpdate
from crossbow.solver import Update
from crossbow.solver.adaptation import UNCORRECTED, Terms
from crossbow.types import Array

T = TypeVar("T")

UNCHANGED = Update((("base_next", {"base": 1.0}),))
"""What replaces a merge of frozen variables that writes the base model's next value."""

WRITTEN = {
    "weights": "new value of",
    "velocity": "velocity of",
    "second_moment": "second moment of",
    "base_next": "base model's new value of",
    "base_velocity": "base model's velocity of",
    "base_second_moment": "base model's second moment of",
    "mean": "mean of what learners send of",
    "base": "base model's new value of",
    "taken": "copy of the base model's",
}
"""Names, for messages, of the vectors that updates write."""


@dataclass(frozen=True)
class Ranges:
    """Ranges of the vectors of variables with separate updates. The ranges are disjoint and in order."""

    rates: Sequence[tuple[slice, float]] = ()
    """Ranges with one multiplier of the learning rate, if the multipliers differ; see `ModelLayout`."""
    kept: Sequence[slice] = ()
    """Ranges of the learners' local variables."""
    checked: ModelLayout | None = None
    """The layout of the variables, if written values are checked (`SystemConf.check_numerics`)."""

    @property
    def multipliers(self) -> tuple[float, ...]:
        return tuple(dict.fromkeys(multiplier for _, multiplier in self.rates)) or (1.0,)

    @property
    def frozen(self) -> list[slice]:
        """Ranges of frozen variables."""
        return [place for place, multiplier in self.rates if multiplier == 0]


@dataclass(frozen=True)
class VectorArithmetic:
    """Creates kernel calls that combine vectors."""

    library: KernelLibrary
    dtype: np.dtype[np.generic]
    ranges: Ranges = Ranges()
    largest_norm: float | None = None
    """The norm to which gradients are clipped (`SolverConf.clip_gradient_norm`)."""
    to_device: Callable[[Array], Array] | None = None
    """Copies numbers to the memory that kernels read, if this is not the host's memory."""

    def array(self, numbers: Sequence[float]) -> Array:
        """Return numbers as an array that kernels read and write, in double precision."""
        made = np.array(numbers, np.float64)
        return made if self.to_device is None else self.to_device(made)

    def combine(self, name: str, update: Update, vectors: Mapping[str, Array], coefficients: Array) -> list[BoundStep]:
        """Return the update of whole vectors, which is linear, with these coefficients."""
        if not update.steps:
            return []
        kernel = self.library.prepare(LinearCombination(update.assignments, self.dtype, update.signs))
        buffers = {vector: vectors[vector] for vector in update.vectors}
        return [BoundStep(name, call) for call in kernel.bind({**buffers, "coefficients": coefficients})]

    def adapt(
        self, name: str, update: Update, vectors: Mapping[str, Array], coefficients: Array, correction: Array
    ) -> list[BoundStep]:
        """Return the update of whole vectors, which has an adaptive step, with these coefficients."""
        assert update.adaptation is not None
        (assignment,) = update.assignments
        kernel = self.library.prepare(AdaptiveStep(update.adaptation.form, assignment, self.dtype))
        buffers = {vector: vectors[vector] for vector in update.vectors}
        bound = kernel.bind({**buffers, "coefficients": coefficients, "correction": correction})
        return [BoundStep(name, call) for call in bound]

    def fixed(self, name: str, update: Update, vectors: Mapping[str, Array]) -> list[BoundStep]:
        """Return an update of whole vectors whose coefficients never change."""
        return self.combine(name, update, vectors, self.array(update.coefficients))

    def count(self, name: str, bound: BoundUpdate, vectors: Mapping[str, Array]) -> tuple[list[BoundStep], BoundUpdate]:
        """Calls that count the step of an adaptive update, and the update with the bias correction that follows from
        the count. All ranges of one step are counted once. Other updates are returned as they are."""
        if bound.update.adaptation is None:
            return [], bound
        correction, count = self.array(UNCORRECTED), bound.update.count
        alone = None if bound.alone is None else replace(bound.alone, correction=correction)
        counted = replace(bound, correction=correction, alone=alone)
        if count is None:
            return [], counted
        kernel = self.library.prepare(CountStep(count.beta1, count.beta2))
        calls = kernel.bind({"step_count": vectors[count.name], "correction": correction})
        return [BoundStep(name, call) for call in calls], counted

    def adjust(
        self,
        name: str,
        bound: BoundUpdate,
        vectors: Mapping[str, Array],
        place: slice,
        *,
        skips_frozen: bool = True,
    ) -> list[BoundStep]:
        """Return an update of this range of the vectors. For local variables, `alone` replaces it.

        A mean of equal values may differ from them in the last digits, because its coefficients are rounded. So frozen
        variables are left out. skips_frozen: whether they are; with masses, they are not.
        """
        frozen = _within(self.ranges.frozen, place) if skips_frozen else []
        local = [] if bound.alone is None else _within(self.ranges.kept, place)
        kept = [piece for each in local for piece in without(each, _within(frozen, each))]
        steps: list[BoundStep] = []
        if "base_next" in bound.update.written:
            for part in frozen:
                steps += self.fixed(name, UNCHANGED, _at(part, place, vectors))
        for part in kept:
            assert bound.alone is not None
            steps += self._adjust(name, bound.alone, _at(part, place, vectors), part)
        for part in without(place, sorted([*frozen, *kept], key=lambda each: each.start)):
            steps += self._adjust(name, bound, _at(part, place, vectors), part)
        return steps

    def _adjust(self, name: str, bound: BoundUpdate, vectors: Mapping[str, Array], place: slice) -> list[BoundStep]:
        """Return one update for every learning rate in the range."""
        steps: list[BoundStep] = []
        if len(bound.numbers) == 1:
            steps += self._apply(name, bound, vectors, *bound.numbers.values())
        else:
            for run, multiplier in overlapping(self.ranges.rates, place, lambda pair: pair[0]):
                steps += self._apply(name, bound, _at(run, place, vectors), bound.numbers[multiplier])
        return [*steps, *self.look_through(name, bound.update.written, vectors, place)]

    def _apply(
        self, name: str, bound: BoundUpdate, vectors: Mapping[str, Array], coefficients: Array
    ) -> list[BoundStep]:
        """Return the update of whole vectors, linear or adaptive. The step of an adaptive update must have been
        counted."""
        if bound.update.adaptation is None:
            return self.combine(name, bound.update, vectors, coefficients)
        assert bound.correction is not None
        return self.adapt(name, bound.update, vectors, coefficients, bound.correction)

    def look_through(
        self, name: str, written: Sequence[str], vectors: Mapping[str, Array], place: slice
    ) -> list[BoundStep]:
        """Finite checks of this range of the vectors, per variable."""
        steps: list[BoundStep] = []
        segments = () if self.ranges.checked is None else tuple(self.ranges.checked)
        found = overlapping(segments, place, lambda segment: segment.place)
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

    def combine_statistics(self, terms: Terms, vectors: Mapping[str, Array]) -> list[BoundStep]:
        """Return the mean of running statistics, or a part of it, with a finite check if numbers are checked."""
        steps = self.fixed("statistics", Update((("statistics", terms),)), vectors)
        if self.ranges.checked is not None:
            kernel = self.library.prepare(CheckFinite("learners' mean of the running statistics"))
            steps += [BoundStep("statistics", call) for call in kernel.bind({"value": vectors["statistics"]})]
        return steps

    def square(self, terms: Terms, vectors: Mapping[str, Array], square: Array) -> list[BoundStep]:
        """The squared norm of a combination of gradients."""
        kernel = self.library.prepare(SquaredNorm(tuple(terms), self.dtype))
        buffers = {**{term: vectors[term] for term in terms}, "coefficients": self.array(list(terms.values()))}
        return [BoundStep("gradient norm", call) for call in kernel.bind({**buffers, "square": square})]

    def clip(
        self, bound: BoundUpdate, gradients: Collection[str], squares: Array
    ) -> tuple[list[BoundStep], BoundUpdate]:
        """Calls that clip the gradients in an update by the sum of the squares, and the update to use."""
        assert self.largest_norm is not None
        marks = tuple(term in gradients for term in bound.update.terms)
        kernel = self.library.prepare(ClipCoefficients(self.largest_norm, marks))
        clipped = {multiplier: self.array([0.0] * numbers.size) for multiplier, numbers in bound.numbers.items()}
        steps: list[BoundStep] = []
        for multiplier, numbers in bound.numbers.items():
            buffers = {"squares": squares, "coefficients": numbers, "clipped_coefficients": clipped[multiplier]}
            steps += [BoundStep("clip", call) for call in kernel.bind(buffers)]
        made = replace(bound, numbers=clipped)
        if bound.alone is not None:
            more, alone = self.clip(bound.alone, gradients, squares)
            steps, made = [*steps, *more], replace(made, alone=alone)
        return steps, made

    def clip_by_norm(
        self, bound: BoundUpdate, gradients: Terms, vectors: Mapping[str, Array]
    ) -> tuple[list[BoundStep], BoundUpdate]:
        """Calls that measure a combination of gradients and clip it in an update, and the update to use."""
        squares = self.array([0.0])
        clipping, clipped = self.clip(bound, tuple(gradients), squares)
        return [*self.square(gradients, vectors, squares), *clipping], clipped

    def step(
        self, blocks: Sequence[BoundBlock], bound: BoundUpdate, vectors: Mapping[str, Array], *, clipped: bool
    ) -> list[BoundStep]:
        """Return a learner's step. Gradients in blocks are computed here, and used while they are in the cache.

        clipped: whether to clip the learner's own gradient by its norm.
        """
        steps, bound = self.count("optimiser", bound, vectors)
        if clipped:
            clipping, bound = self.clip_by_norm(bound, {"gradient": 1.0}, vectors)
            steps += clipping
        for block in blocks:
            steps += [BoundStep(block.operator, call) for call in block.calls]
            part = {name: vector[block.place] for name, vector in vectors.items()}
            steps += self.adjust("optimiser", bound, {**part, "gradient": block.gradient}, block.place)
        whole = slice(0, vectors["gradient"].size)
        for piece in without(whole, sorted((block.place for block in blocks), key=lambda place: place.start)):
            part = {name: vector[piece] for name, vector in vectors.items()}
            steps += self.adjust("optimiser", bound, part, piece)
        return steps


def _cut(whole: slice, place: slice) -> slice:
    """The part of `whole` within `place`, relative to the beginning of `place`. Empty if start ≥ stop."""
    return slice(max(whole.start, place.start) - place.start, min(whole.stop, place.stop) - place.start)


def _at(part: slice, place: slice, vectors: Mapping[str, Array]) -> dict[str, Array]:
    """The vectors of `place` in the range `part`."""
    inside = _cut(part, place)
    return {name: vector[inside] for name, vector in vectors.items()}


def _within(parts: Sequence[slice], place: slice) -> list[slice]:
    """The intersections of ranges, which are disjoint and in order, with `place`."""
    found = overlapping(parts, place, lambda each: each)
    return [slice(max(each.start, place.start), min(each.stop, place.stop)) for each in found]


def overlapping(items: Sequence[T], place: slice, of: Callable[[T], slice]) -> list[T]:
    """Return the items whose ranges (`of`) overlap `place`. The ranges are disjoint and in order.

    >>> overlapping([slice(0, 4), slice(4, 4), slice(4, 8), slice(8, 9)], slice(3, 8), lambda item: item)
    [slice(0, 4, None), slice(4, 8, None)]
    """
    first = bisect_right(items, place.start, key=lambda item: of(item).stop)
    last = bisect_left(items, place.stop, first, key=lambda item: of(item).start)
    return [item for item in items[first:last] if of(item).start < of(item).stop]


def without(whole: slice, parts: Sequence[slice]) -> list[slice]:
    """Return a range without some of its parts, which are disjoint and in order.

    >>> without(slice(0, 9), [slice(0, 2), slice(2, 4), slice(6, 7)])
    [slice(4, 6, None), slice(7, 9, None)]
    """
    bounds = [whole.start, *(bound for part in parts for bound in (part.start, part.stop)), whole.stop]
    return [slice(start, stop) for start, stop in zip(bounds[::2], bounds[1::2], strict=True) if start < stop]
