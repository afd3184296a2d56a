"""Merges of a tick: the vectors that are combined, the same on every device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossbow.compile import BoundStep
from crossbow.runtime.arithmetic import VectorArithmetic
from crossbow.runtime.coefficients import BoundUpdate
from crossbow.runtime.replica import Replica
from crossbow.solver import Update
from crossbow.solver.update import total
from crossbow.synch import BarrierRule
from crossbow.types import Array


@dataclass(frozen=True)
class Merging:
    """Creates the calls that compute the next z, and its statistics, from the learners' contributions."""

    arithmetic: VectorArithmetic
    rule: BarrierRule
    learners: int
    """Number of learners on all devices of all ranks."""
    clips_own: bool = False
    """Whether each learner clips its own gradient."""
    clips_mean: bool = False
    """Whether the mean gradient is clipped."""
    first: int = 0
    """Number of this rank's first learner."""
    adds_parts: bool = False
    """Whether a synchroniser computes the mean of all learners, which are on several devices or ranks."""
    chained: bool = False
    """Whether the synchroniser adds up the contributions in the order of the learners. Otherwise devices and ranks
    first add up their own."""
    mean_first: bool = False
    """Whether a single device first computes the learners' mean in a separate vector, and then merges it."""

    def mean(self, name: str, learners: int) -> dict[str, float]:
        """The terms of this many learners in the mean of all learners' vectors of this name (`name0`, …)."""
        return total(name, [1 / self.learners] * learners)

    def sent(self, replicas: Sequence[Replica]) -> dict[str, Array]:
        """The vectors that the learners of a device send, as sent0, …"""
        return {f"sent{i}": replica.vectors()[self.rule.sent_vector] for i, replica in enumerate(replicas)}

    def observed(self, replicas: Sequence[Replica], parity: int) -> dict[str, Array]:
        """The statistics that match the learners' contributions in a tick of this parity, as observed0, …"""
        which = self.statistics_after(parity)
        return {f"observed{i}": replica.statistics[which] for i, replica in enumerate(replicas)}

    def statistics_after(self, parity: int) -> int:
        """The index of a learner's statistics that match its contribution in a tick of this parity. Weights are from
        before its last task, and so are their statistics; gradients and new weights have the statistics after it."""
        return parity if self.rule.sends == "weights" else 1 - parity

    def sum_of_device(self, vectors: dict[str, Array], learners: int) -> list[BoundStep]:
        """One device's part of the mean of all learners."""
        return self.arithmetic.fixed("sum of the device", Update((("mean", self.mean("sent", learners)),)), vectors)

    def mean_statistics(
        self, replicas: Sequence[Replica], parity: int, target: Array, place: slice = slice(None)
    ) -> list[BoundStep]:
        """The mean of all learners' statistics, or their device's part of it, in this range of the vectors."""
        vectors = {name: vector[place] for name, vector in self.observed(replicas, parity).items()}
        terms = self.mean("observed", len(replicas))
        return self.arithmetic.combine_statistics(terms, {**vectors, "statistics": target[place]})

    def reply(self, reply: BoundUpdate, vectors: Mapping[str, Array]) -> list[BoundStep]:
        """Calls of a learner's update after the merge."""
        used = {name: vectors[name] for name in reply.update.vectors}
        return self.arithmetic.adjust("reply", reply, used, slice(0, vectors["base"].size))
