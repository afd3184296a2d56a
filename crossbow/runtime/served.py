"""Exchanges across ranks under a rule with a base model but without a barrier.

Rank 0 has z and the rule's state, and merges the contributions of all learners one by one. For each learner of another
rank it has a *mirror*, a replica that stores what the learner sent last, and its velocity and z_taken if the merge uses
them. So a merge and a reply are computed as if the learner were rank 0's own::

    learner of rank r                        rank 0
    task, local step
    weights or gradient    ── message ──►    mirror → merge into z → reply in the mirror
    weights, or copy of z  ◄── message ──    once the rule lets the learner continue

Between two of its messages a learner waits, so its rank's thread may overwrite its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from crossbow.cluster.placement import Placement
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.sums import Waiting, tree
from crossbow.runtime.backend import Combination
from crossbow.runtime.exchange import BaseExchange, Exchange, Participants
from crossbow.runtime.flags import Flags
from crossbow.runtime.messages import END, Messages, Note
from crossbow.runtime.replica import Replica
from crossbow.solver import Pace, SolverConf, Update
from crossbow.solver.update import CONSTANT, total
from crossbow.synch import FreeRule
from crossbow.types import Array


@dataclass(frozen=True)
class Link:
    """What connects an exchange with those of other ranks."""

    ranks: Ranks
    placement: Placement
    flags: Flags
    freed: Callable[[], None]
    """Called on the session's thread when a message has let learners continue."""
    failed: Callable[[BaseException], None]
    """Called on the session's thread when the exchange fails."""

    @property
    def others(self) -> list[int]:
        """The numbers of the other ranks."""
        return [rank.number for rank in self.ranks.view.ranks if rank.number != self.ranks.rank]

    def sum(self, parts: Iterable[Array]) -> None:
        """Each array ← the sum of all ranks' arrays. Raises ViewChangedError if a rank has left."""
        for part in parts:
            if part.size:
                tree(self.ranks.transport, part, Waiting(self._aborted))

    def _aborted(self) -> bool:
        """Whether to give up a wait. Raises ViewChangedError if a rank has left."""
        self.ranks.check_others()
        return bool(self.flags.abort[0])


def mean_parts(participants: Participants) -> list[Array]:
    """The parts of z of which every rank has computed its learners' part of the mean: local variables, and
    statistics."""
    base = participants.base
    return [*(base.buffers[0][place] for place in participants.arithmetic.ranges.kept), base.statistics[0]]


class ServingExchange(BaseExchange):
    """The exchange of rank 0."""

    def __init__(
        self,
        participants: Participants,
        rule: FreeRule,
        solver: SolverConf,
        variables: Sequence[slice],
        link: Link,
        **options: Any,
    ) -> None:
        """options: those of `BaseExchange`."""
        super().__init__(participants, rule, solver, variables, **options)
        self._link, self._rank_of = link, dict[int, int]()
        self._messages = Messages(link.ranks, link.others, link.flags)
        self._messages.connect(self._into, self._contributed, link.failed)

    def begin_session(self) -> None:
        self._messages.begin()

    def give_up(self) -> None:
        self._messages.give_up()

    def settle(self) -> None:
        self._messages.begin()
        self._messages.end()
        note = Note(END, (self.merges, *self.arrivals()))
        for rank in self._link.others:
            self._messages.send(rank, note, self._participants.base.buffers[0])
        self._messages.flush()
        super().settle()
        self._link.sum(mean_parts(self._participants))

    def _into(self, rank: int, note: Note) -> Array:
        return sent_vector(self._rule, self._replicas[note.learner])

    def rest(self, learner: int) -> None:
        self._let_go(self._participants.meeting.exchange(learner, lambda: self._rest(learner)))
        self._link.freed()

    def _rest(self, learner: int) -> list[int]:
        with self._merging:
            self.progress.rest(learner)
            return self._reply_to_waiting(Pace(0.0, 0.0))  # replies of rules that drift do not depend on it

    def _contributed(self, rank: int, note: Note) -> None:
        if note.learner == END:
            return
        if not note.vector:
            self.rest(note.learner)
        else:
            self._rank_of[note.learner] = rank
            self._exchange(note.learner, pace_of(note.numbers))
            self._link.freed()

    def _let_go(self, going: Sequence[int]) -> None:
        super()._let_go([learner for learner in going if learner < self._own])
        for learner in going:
            if learner >= self._own:
                vector = replied_vector(self._participants, self._replicas[learner])
                self._messages.send(self._rank_of[learner], Note(learner), vector)


class RemoteExchange(Exchange):
    """The exchange of every other rank, which sends contributions to rank 0. A note without a vector says that a
    learner has no task."""

    def __init__(self, participants: Participants, rule: FreeRule, link: Link) -> None:
        super().__init__(participants, rule.tau)
        self._rule, self._link, self._first = rule, link, link.placement.first
        self._counts = 0, 0, 0, 0
        """Merges and arrivals, as rank 0 counted them in the last session."""
        self._ended = False
        """Whether this rank sends nothing more in this session."""
        self._messages = Messages(link.ranks, [0], link.flags)
        self._messages.connect(self._into, self._replied, link.failed)
        self._part = self._part_of_mean()
        self.restart()

    def begin_session(self) -> None:
        self._ended = False
        self._messages.begin()

    def give_up(self) -> None:
        self._messages.give_up()

    def settle(self) -> None:
        self._messages.begin()
        with self._lock:
            self._ended = True
            self._messages.send(0, Note(END))
        self._messages.end()
        self._messages.flush()
        super().settle()
        self._link.sum(mean_parts(self._participants))

    def rest(self, learner: int) -> None:
        with self._lock:  # nothing may follow the end
            if not self._ended:
                self._messages.send(0, Note(self._first + learner))

    def keep_part(self) -> tuple[float, float]:
        """See `Exchange.keep_part`. If rank 0 is lost, z is the mean of what the learners that are left read from it
        last, with their own steps since. Of it, this is this rank's part."""
        self._participants.meeting.settle(lambda: self._part.run(Pace(0.0, 0.0), None))
        return super().keep_part()

    def _part_of_mean(self) -> Combination[None]:
        """base ← this rank's part of the mean of all learners' weights or, if they read z itself, copies of z."""
        vectors, terms = self._participants.base.vectors(0), {"base": self._own / self._learners}
        if self._participants.replicas[0].weights is not None:
            own = {f"weights{i}": each.vectors()["weights"] for i, each in enumerate(self._participants.replicas)}
            vectors, terms = {**vectors, **own}, total("weights", [1 / self._learners] * self._own)
        update = Update((("base", terms),), depends_on=CONSTANT)
        return self._participants.bind("part", lambda pace, _: update, None, vectors)

    @property
    def _mass(self) -> float:
        return 0.0  # rank 0 has z

    @property
    def merges(self) -> int:
        return self._counts[0]

    @property
    def own_merges(self) -> int:
        return 0  # rank 0 counts them

    def arrivals(self) -> tuple[int, int, int]:
        return self._counts[1:]

    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        """Send the learner's contribution. It continues when rank 0 has replied."""
        vector = sent_vector(self._rule, self._participants.replicas[learner])
        self._messages.send(0, Note(self._first + learner, pace), vector)
        return []

    def _into(self, rank: int, note: Note) -> Array:
        if note.learner == END:
            return self._participants.base.buffers[0]
        return replied_vector(self._participants, self._participants.replicas[note.learner - self._first])

    def _replied(self, rank: int, note: Note) -> None:
        if note.learner == END:
            merges, arrivals, dropped, staleness = map(int, note.numbers)
            self._counts = merges, arrivals, dropped, staleness
            return
        self._let_go([note.learner - self._first])
        self._link.freed()


def sent_vector(rule: FreeRule, replica: Replica) -> Array:
    """The vector that a learner sends."""
    if rule.sends_gradient:
        return replica.gradient
    assert replica.weights is not None
    return replica.weights


def replied_vector(participants: Participants, replica: Replica) -> Array:
    """The vector that a learner receives: its weights or, if it reads z itself, its rank's copy of z."""
    return participants.base.buffers[0] if replica.weights is None else replica.weights


def pace_of(numbers: Sequence[float]) -> Pace:
    """The pace in a message."""
    rate, momentum, tick, time = numbers
    return Pace(rate, momentum, int(tick), time)
