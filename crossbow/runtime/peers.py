"""Exchanges across ranks between pairs of learners, without a base model.

A learner sends its weights and a part of its mass directly to the rank of the other learner, which adds them to the
messages on their way to it. Each rank has the masses of its own learners; over all ranks, they add up to 1. z is a sum
over the ranks.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from crossbow.runtime.backend import Arriving
from crossbow.runtime.exchange import PeerExchange
from crossbow.runtime.messages import Kind, Messages, Note
from crossbow.runtime.participants import Participants
from crossbow.runtime.served import Link, pace_of
from crossbow.solver import Pace
from crossbow.synch import PeerRule


class RankPeerExchange(PeerExchange):
    """The exchange of one of several ranks."""

    def __init__(
        self, participants: Participants, rule: PeerRule, link: Link, firsts: Sequence[int], *, seed: int = 0
    ) -> None:
        """firsts: number of the first learner of each rank."""
        super().__init__(participants, rule, seed=seed)
        self._link, self._firsts = link, firsts
        base = participants.base.buffers[0]
        self._arrived = link.backend.zeros(0)(base.nbytes).view(base.dtype)
        """The weights that have just arrived."""
        self._bring = [
            self._mix({"weights": replica.vectors()["received"], "received": self._arrived})
            for replica in participants.replicas
        ]
        self._met_elsewhere: dict[int, int] = {}
        self._messages = Messages(link.ranks, link.others, link.flags, rare=True)
        self._messages.connect(self._into, self._received, link.failed)

    def begin_session(self) -> None:
        self._messages.begin()

    def give_up(self) -> None:
        self._messages.give_up()

    def settle(self) -> None:
        self._messages.begin()
        for rank in self._link.others:
            self._messages.send(rank, Note(Kind.END, numbers=(self._met,)))
        self._messages.end()
        self._messages.flush()
        super().settle()
        base = self._participants.base
        self._link.sum([base.buffers[0], base.statistics[0]])

    @property
    def merges(self) -> int:
        return self._met + sum(self._met_elsewhere.values())

    @property
    def own_merges(self) -> int:
        return self._met

    def _give(self, learner: int, peer: int, pace: Pace) -> None:
        if 0 <= peer < self._own:
            super()._give(learner, peer, pace)
            return
        number = self._first + peer
        mass = self.masses.take(learner, self._rule.part_sent())
        weights = self._participants.replicas[learner].vectors()["weights"]
        rank = bisect.bisect(self._firsts, number) - 1
        leaving = self._participants.meeting.leaving(weights, learner, changes=True)  # the learner continues at once
        self._messages.send(rank, Note(Kind.VECTOR, number, (mass, *pace)), leaving)

    def _into(self, rank: int, note: Note) -> Arriving:
        return self._participants.meeting.arriving(self._arrived)

    def _received(self, rank: int, note: Note) -> None:
        if note.kind == Kind.END:
            self._met_elsewhere[rank] = int(note.numbers[0])
            return
        self._participants.meeting.exchange(None, lambda: self._bring_in(note))

    def _bring_in(self, note: Note) -> list[int]:
        """Add the received weights to the messages on their way to a learner. No learner waits for them."""
        mass, *pace = note.numbers
        learner = note.learner - self._first
        with self._lock:
            self._bring[learner].run(pace_of(pace), self.masses.bring(learner, mass))
        return []
