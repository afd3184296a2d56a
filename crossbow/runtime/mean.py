"""The mean of all learners' vectors, over devices or over ranks without shared memory, as calls of a synchroniser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from crossbow.cluster.ranks import Ranks
from crossbow.cluster.sums import Add, Waiting, blocks_of, chain, sum_target, tree
from crossbow.compile import BoundStep
from crossbow.host_memory import aligned_zeros
from crossbow.runtime.flags import Flags
from crossbow.runtime.merging import Merging
from crossbow.solver import Update
from crossbow.synch import Collective
from crossbow.types import Array

NAME = "all-reduce"
"""Name of the calls, for errors."""


@dataclass(frozen=True)
class Mean:
    """Creates the calls that compute the mean."""

    merging: Merging
    ranks: Ranks
    collective: Collective
    flags: Flags
    check_others: Callable[[], None] = lambda: None
    """Called during a wait for other ranks; raises an error if they have failed or left."""
    through_host: Callable[[Array, Callable[[Array], None]], Callable[[], None]] = lambda vector, work: (
        lambda: work(vector)
    )
    """See `Backend.through_host`."""
    unfinished: dict[str, Array] = field(default_factory=dict)
    """Vectors of unfinished sums by name, for the calls of all ticks."""

    @property
    def awaited(self) -> tuple[str, Array]:
        """The flags of this rank's learners for which the calls must wait, and their name."""
        if self.merging.chained:
            return "ready", self.flags.ready
        return "contributed", self.flags.contributed

    def of(self, name: str, sent: Mapping[str, Array], means: Sequence[Array]) -> list[BoundStep]:
        """means ← the mean of the vectors of all learners.

        sent: the vectors of this rank's learners, as name0, …; not used in a tree. means: one vector for each device of
        this rank; in a tree, each contains its learners' part of the mean.
        """
        steps = self._chain(name, sent, means[0]) if self.merging.chained else self._tree(means)
        if len(means) > 1 and (self.merging.chained or self.ranks.several):
            steps.append(BoundStep(NAME, lambda: _copy(means)))
        return steps

    def _waiting(self) -> Waiting:
        return Waiting(self._aborted, ranks=self.ranks.size)

    def _aborted(self) -> bool:
        self.check_others()
        return self.flags.aborted

    def _tree(self, means: Sequence[Array]) -> list[BoundStep]:
        """Add up the devices first, then the ranks."""
        steps = [] if len(means) == 1 else [BoundStep(NAME, lambda: self.collective.all_reduce(means))]
        if self.ranks.several:
            add_ranks = self.through_host(means[0], lambda part: tree(self.ranks.transport, part, self._waiting()))
            steps.append(BoundStep(NAME, add_ranks))
        return steps

    def _chain(self, name: str, sent: Mapping[str, Array], whole: Array) -> list[BoundStep]:
        """Add up all learners in their order, as one device does."""
        if not self.ranks.several:
            return self._added(name, {**sent, "sum": whole}, begins=True)
        transport = self.ranks.transport
        if name not in self.unfinished:
            self.unfinished[name] = aligned_zeros(whole.nbytes).view(whole.dtype)
        partial = self.unfinished[name]
        target = sum_target(transport, partial, whole)
        adds: list[tuple[slice, Add]] = []
        for place in blocks_of(whole, transport.block(whole.nbytes)):
            vectors = {**{each: vector[place] for each, vector in sent.items()}, "sum": target[place]}
            (step,) = self._added(name, vectors, begins=self.ranks.is_first)
            adds.append((place, step.call))
        return [BoundStep(NAME, lambda: chain(transport, partial, whole, adds, self._waiting()))]

    def _added(self, name: str, vectors: Mapping[str, Array], *, begins: bool) -> list[BoundStep]:
        """Add this rank's terms to `sum`, or begin it."""
        terms = self.merging.mean(name, len(vectors) - 1)
        update = Update((("sum", terms if begins else {"sum": 1.0, **terms}),))
        return self.merging.arithmetic.fixed(NAME, update, vectors)


def _copy(means: Sequence[Array]) -> None:
    for mean in means[1:]:
        mean[...] = means[0]
