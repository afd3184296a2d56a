"""The vectors that learners exchange without a barrier, and the arithmetic that combines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from crossbow.compile import BoundStep
from crossbow.runtime.arithmetic import VectorArithmetic
from crossbow.runtime.backend import Combination, Meeting
from crossbow.runtime.coefficients import About, BoundUpdate, Formula
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.solver import Pace, Update
from crossbow.solver.update import total
from crossbow.synch.rule import NOTHING
from crossbow.timeline.recorder import MERGE, Recorder, learner_track
from crossbow.types import Array


@dataclass(frozen=True)
class Participants:
    """The vectors that an exchange combines, and the arithmetic that combines them."""

    base: BaseModel
    replicas: Sequence[Replica]
    arithmetic: VectorArithmetic
    meeting: Meeting
    recorder: Recorder = field(default_factory=Recorder)
    of_all: int | None = None
    """Number of learners of all ranks; None if there are no other ranks."""
    first: int = 0
    """Number of this rank's first learner among all learners."""
    part: slice | None = None
    """On a server, its range of z."""
    mirrors: Sequence[Replica] = ()
    """On a server, replicas of other ranks' learners, which contain only this range."""

    @property
    def learners(self) -> int:
        """Number of learners of all ranks."""
        return len(self.replicas) if self.of_all is None else self.of_all

    def bind(
        self,
        name: str,
        at: Callable[[Pace, About], Update],
        some: About,
        vectors: Mapping[str, Array],
        clipped: Mapping[str, float] | None = None,
        place: slice | None = None,
        start: int = 0,
        skips_frozen: bool = True,
    ) -> Combination[About]:
        """Return an update of vectors, except the learners' local variables and, with `skips_frozen`, frozen ones.

        some: an example of the second argument of `at`. clipped: the combination of gradients
        whose norm is limited, if any. place: the range of z to update, which may be empty; None means all. start:
        offset in z at which the vectors begin.
        """
        arithmetic, ranges = self.arithmetic, self.arithmetic.ranges
        alone = Formula(lambda pace, about: NOTHING, some) if ranges.kept else None
        formula = Formula(at, some, ranges.multipliers, alone)
        used = {vector: vectors[vector] for vector in formula.form.vectors}
        where = place or slice(0, self.base.buffers[0].size)

        def bind(update: BoundUpdate) -> list[BoundStep]:
            steps, update = arithmetic.count(name, update, vectors)
            if clipped is not None:
                clipping, update = arithmetic.clip_by_norm(update, clipped, used)
                steps += clipping
            if used and where.start < where.stop:
                inside = slice(where.start - start, where.stop - start)
                cut = {vector: values[inside] for vector, values in used.items()}
                steps += arithmetic.adjust(name, update, cut, where, skips_frozen=skips_frozen)
            return steps

        return self.meeting.combination(formula, bind)

    def record(self, learner: int, begin: int, going: list[int]) -> None:
        """Record the end of a learner's exchange, which lets others continue. begin: time at which it got the lock."""
        if self.recorder.on:
            self.recorder.event(learner_track(learner), MERGE, begin, going=going)

    def means(self) -> list[BoundStep]:
        """Calls that compute z's local variables and statistics: the means over the learners, or this rank's part of
        the means."""
        return [*self._mean_of_kept(), *self._mean_statistics()]

    def _mean_of_kept(self) -> list[BoundStep]:
        steps: list[BoundStep] = []
        terms = total("weights", [1 / self.learners] * len(self.replicas))
        for place in self.arithmetic.ranges.kept:
            vectors = {f"weights{i}": each.vectors()["weights"][place] for i, each in enumerate(self.replicas)}
            vectors["base"] = self.base.buffers[0][place]
            steps += self.arithmetic.fixed("mean", Update((("base", terms),)), vectors)
        return steps

    def _mean_statistics(self) -> list[BoundStep]:
        if not self.base.statistics[0].size:
            return []
        vectors = {f"observed{i}": replica.statistics[0] for i, replica in enumerate(self.replicas)}
        terms = total("observed", [1 / self.learners] * len(self.replicas))
        return self.arithmetic.combine_statistics(terms, {**vectors, "statistics": self.base.statistics[0]})
