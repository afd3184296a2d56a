"""Exchanges across ranks under a rule with a base model but without a barrier.

The first ranks, by default rank 0 alone, are *servers*: each has a part of z and the rule's state. For each learner of
another rank, a server has a *mirror*, a replica with its part of the learner's last contribution, and of its velocity
and z_taken if the merge uses them. So merges and replies are computed as if the learner were the server's own::

    learner of rank r                        each server
    task, local step
    weights or gradient    ── message ──►    mirror → merge into z → reply in the mirror
    weights, or copy of z  ◄── message ──    once the rule lets the learner continue

Rank 0 merges contributions as they arrive, and tells the other servers in which order: each contribution has a *turn*.
They wait for the turn as well as for their part of the contribution. Because a server's work depends only on the order,
the parts of z are consistent, and have the same bits as z on one server. A learner continues when all servers have
replied. A learner waits between its message and the replies, so its rank's thread may overwrite its weights.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from crossbow.cluster.placement import Placement
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.sums import Waiting, tree
from crossbow.runtime.backend import Arriving, Backend
from crossbow.runtime.copies import WHOLE, Copies, Copy
from crossbow.runtime.exchange import Exchange
from crossbow.runtime.flags import Flags
from crossbow.runtime.memory import assign, on_host
from crossbow.runtime.messages import Kind, Messages, Note
from crossbow.runtime.participants import Participants
from crossbow.runtime.server import Server
from crossbow.solver import Pace
from crossbow.synch import FreeRule
from crossbow.types import Aborted, Array


@dataclass(frozen=True)
class Link:
    """The connection of an exchange with the exchanges of other ranks."""

    ranks: Ranks
    placement: Placement
    flags: Flags
    backend: Backend
    freed: Callable[[], None]
    """Called on the session's thread when a message has let learners continue."""
    failed: Callable[[BaseException], None]
    """Called on the session's thread when the exchange fails."""

    @property
    def others(self) -> list[int]:
        """The numbers of the other ranks."""
        return [rank.number for rank in self.ranks.view.ranks if rank.number != self.ranks.rank]

    def sum(self, parts: Iterable[Array]) -> None:
        """Each array ← the sum of all ranks' arrays. No task may be running. Raises ViewChangedError if a rank has
        left."""
        for part in parts:
            if part.size:
                values = on_host(part)
                tree(self.ranks.transport, values, Waiting(self._aborted, ranks=self.ranks.size))
                if values is not part:
                    assign(part, values)
        self.backend.synchronise()

    def _aborted(self) -> bool:
        """Whether to give up a wait. Raises ViewChangedError if a rank has left."""
        self.ranks.check_others()
        return bool(self.flags.abort[0])


class ServedExchange(Exchange):
    """The exchange of one of several ranks. Learners are numbered over all ranks, except in calls from other
    classes."""

    def __init__(
        self, participants: Participants, rule: FreeRule, link: Link, parts: Sequence[slice], server: Server | None
    ) -> None:
        """parts: each server's range of z. server: the server of this rank, if it is one."""
        super().__init__(participants, rule.tau)
        self._rule, self._link, self._parts, self.server = rule, link, parts, server
        self._rank, self._first = link.ranks.rank, participants.first
        self._base, self._meeting = participants.base.buffers[0], participants.meeting
        self._rank_of: dict[int, int] = {}
        self._counts = 0, 0, 0, 0
        """Except on rank 0: merges and arrivals in earlier sessions, as rank 0 has counted them."""
        self._active = self._has_ended = False
        """Whether this rank's learners train in this session, and whether this rank has sent its last message in it."""
        self._done, self._complete = set[int](), set[int]()
        """The other ranks whose learners have ended the session, and the servers that have sent their final part of
        z."""
        self._turns = deque[Note]()
        """Messages with the turns that rank 0 has assigned, for this server."""
        self._waiting: dict[int, Pace] = {}
        """On servers other than rank 0: the learners whose contributions wait for their turn."""
        self._turn: AbstractContextManager[object] = threading.Lock()
        """Held during a turn. On rank 0, a rule without a lock needs no order."""
        if self._rank == 0 and not rule.locks:
            self._turn = contextlib.nullcontext()
        partners = range(len(parts)) if server is None else link.others
        self._messages = Messages(link.ranks, partners, link.flags)
        self._messages.connect(self._into, self._received, link.failed)
        self.restart()

    # Sessions

    def begin_session(self) -> None:
        self._active = True
        self._messages.begin()

    def give_up(self) -> None:
        self._messages.give_up()

    def settle(self) -> None:
        self._messages.begin()
        with self._lock:
            self._active = False
        if self.server is not None and self._rank:
            self._messages.send(0, Note(Kind.DONE))
        with contextlib.suppress(Aborted):  # the next line raises the cause
            self._end_if_possible()
        self._messages.end()
        self._messages.flush()
        super().settle()
        kept = [self._base[place] for place in self._participants.arithmetic.ranges.kept]
        barrier = np.zeros(1)  # a barrier: no rank begins the next session before all have ended this one
        self._link.sum([*kept, self._participants.base.statistics[0], barrier])
        self._reset()

    def _reset(self) -> None:
        """Forget the session."""
        self._active = self._has_ended = False
        for each in (self._done, self._complete, self._turns, self._waiting):
            each.clear()

    def _end_if_possible(self) -> None:
        """End the session on this rank, as soon as no work is left. A server sends its part of z."""
        if self._active:
            return
        with self._turn, self._lock:
            if self._has_ended or not self._has_done_all():
                return
            self._has_ended = True
        note, part = Note(Kind.END), None
        if self.server is not None:
            note = note._replace(numbers=(self.merges, *self.arrivals()))
            part = self._meeting.leaving(self._base[self.server.part], note.learner)
        for rank in self._link.others:
            if self.server is not None or rank < len(self._parts):
                self._messages.send(rank, note, part)

    def _has_done_all(self) -> bool:
        """Whether no work will follow on this rank. Rank 0 has assigned all turns when the learners of all ranks are
        done."""
        if self._rank == 0:
            return self._done.issuperset(self._link.others)
        return self.server is None or (0 in self._done and not self._turns)

    def restart(self) -> None:
        super().restart()
        self._reset()
        if self.server is not None:
            self.server.progress.restart()
        self._missing = [0] * self._own
        """Number of replies that each learner of this rank waits for."""
        self._settled = [self.merges] * len(self._parts)
        """For each server, the number of merges of its part that this rank's base model includes."""
        self._read = [[self.merges] * self._own for _ in self._parts]
        """For each server, the number of merges that each learner of this rank has read."""

    def begin(self, tick: int) -> None:
        if self.server is not None:
            self.server.begin(tick)

    @property
    def merges(self) -> int:
        return self._counts[0] if self.server is None else self.server.progress.merges

    @property
    def own_merges(self) -> int:
        return 0 if self._rank else self.merges

    def arrivals(self) -> tuple[int, int, int]:
        return self._counts[1:] if self.server is None or self._rank else self.server.arrivals()

    # Contributions, and replies

    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        """Send each server its part of the learner's contribution. The learner continues when all servers have
        replied."""
        replica, number = self._participants.replicas[learner], self._first + learner
        vector = replica.gradient if self._rule.sends_gradient else replica.vectors()["weights"]
        self._missing[learner] = len(self._parts)
        for server, part in enumerate(self._parts):
            if server != self._rank:
                leaving = self._meeting.leaving(vector[part], number)
                self._messages.send(server, Note(Kind.VECTOR, number, pace), leaving)
        return [] if self.server is None else self._contribute(self.server, number, pace)

    def rest(self, learner: int) -> None:
        number = self._first + learner
        with self._lock:  # no message may follow that of the end
            if not self._active:
                return
            if self._rank:
                self._messages.send(0, Note(Kind.REST, number))
                return
        assert self.server is not None
        server = self.server
        with contextlib.suppress(Aborted):  # then no learner continues
            self._let_go(self._meeting.exchange(None, lambda: self._rest(server, number)))
        self._link.freed()

    # Each of the following functions returns the learners of this rank that continue, by their numbers on it.

    def _rest(self, server: Server, learner: int) -> list[int]:
        """On rank 0: let no learner wait for this one."""
        with self._turn:
            if self._has_ended:
                return []
            self._tell_servers(Note(Kind.REST, learner))
            going, merges = server.rest(learner), self.merges
        return self._reply(server, going, merges)

    def _contribute(self, server: Server, learner: int, pace: Pace) -> list[int]:
        """On a server: merge the learner's contribution; on rank 0 now, on other ranks when it has its turn."""
        if self._rank:
            self._waiting[learner] = pace
            return self._take_turns(server)
        with self._turn:
            self._tell_servers(Note(Kind.TURN, learner))
            going, merges = server.arrive(learner, pace), self.merges
        return self._reply(server, going, merges)

    def _tell_servers(self, note: Note) -> None:
        for rank in range(1, len(self._parts)):
            self._messages.send(rank, note)

    def _take_turns(self, server: Server) -> list[int]:
        """Process the turns that rank 0 has assigned, up to a contribution that has not arrived. Any thread may call
        this."""
        continuing: list[int] = []
        with self._turn:
            while self._turns and (self._turns[0].kind == Kind.REST or self._turns[0].learner in self._waiting):
                kind, learner = self._turns[0][:2]
                if kind == Kind.REST:
                    going = server.rest(learner)
                else:
                    going = server.arrive(learner, self._waiting.pop(learner))
                continuing += self._reply(server, going, self.merges)
                self._turns.popleft()
        return continuing

    def _reply(self, server: Server, going: Sequence[int], merges: int) -> list[int]:
        """Reply to learners, which may then continue. merges: the number of merges that their replies include."""
        continuing: list[int] = []
        for learner in going:
            if self._is_own(learner):
                continuing += self._receive_reply(learner, self._rank, merges)
            else:
                leaving = self._meeting.leaving(server.replied(learner), learner)
                self._messages.send(self._rank_of[learner], Note(Kind.VECTOR, learner, (merges,)), leaving)
        return continuing

    def _receive_reply(self, number: int, server: int, merges: int) -> list[int]:
        learner = number - self._first
        with self._lock:
            self._read[server][learner] = merges
            self._missing[learner] -= 1
            return [] if self._missing[learner] else [learner]

    def _is_own(self, learner: int) -> bool:
        return self._link.placement.has(learner)

    # Messages, on the session's thread

    def _into(self, rank: int, note: Note) -> Arriving:
        return self._meeting.arriving(self._kept_in(rank, note))

    def _kept_in(self, rank: int, note: Note) -> Array:
        """The memory that receives a message's vector."""
        if note.kind == Kind.END:
            return self._base[self._parts[rank]]
        if self._is_own(note.learner):
            weights = self._participants.replicas[note.learner - self._first].weights
            return (self._base if weights is None else weights)[self._parts[rank]]
        assert self.server is not None
        return self.server.sent(note.learner)

    def _received(self, rank: int, note: Note) -> None:
        self._let_go(self._meeting.exchange(None, lambda: self._take_in(rank, note)))
        self._end_if_possible()
        self._link.freed()

    def _take_in(self, rank: int, note: Note) -> list[int]:
        server = self.server
        if note.kind == Kind.VECTOR and self._is_own(note.learner):
            return self._receive_reply(note.learner, rank, int(note.numbers[0]))
        if note.kind == Kind.VECTOR and server is not None:
            self._rank_of[note.learner] = rank
            return self._contribute(server, note.learner, pace_of(note.numbers))
        if note.kind == Kind.REST and self._rank == 0 and server is not None:
            return self._rest(server, note.learner)
        if note.kind in (Kind.TURN, Kind.REST) and server is not None:
            self._turns.append(note)
            return self._take_turns(server)
        self._done.add(rank)
        if note.vector:
            merges, arrivals, dropped, staleness = map(int, note.numbers)
            if rank == 0:
                self._counts = merges, arrivals, dropped, staleness
            self._settled[rank] = merges
            self._complete.add(rank)
        return []

    # After the loss of a rank

    def keep_part(self) -> Copies:
        """See `Exchange.keep_part`. The copy of another server's part is the newest one that learners of this rank have
        read, with their own steps since then. If learners do not continue with z, it is the sum of their weights."""
        copies = tuple(self._copy(server, part) for server, part in enumerate(self._parts))
        known = max(self.merges, *(max(read) for read in self._read))
        return super().keep_part()._replace(copies=copies, merges=known)

    def _copy(self, server: int, part: slice) -> Copy:
        """Store the newest copy of a server's part in the base model."""
        if server == self._rank:
            return Copy(part.start, part.stop, 1.0, self.merges, WHOLE)
        if server in self._complete:
            return Copy(part.start, part.stop, 1.0, self._settled[server], WHOLE)
        read, continues = self._read[server], self._rule.takes_base
        newest = max(self._settled[server], *read)
        weights = [
            on_host(replica.weights[part])
            for replica, merges in zip(self._participants.replicas, read, strict=True)
            if replica.weights is not None and (merges == newest or not continues)
        ]
        if not weights or newest == self._settled[server]:
            return Copy(part.start, part.stop, 1.0, newest, newest if continues else -1)
        assign(self._base[part], np.sum(weights, axis=0))
        return Copy(part.start, part.stop, len(weights), newest, newest if continues else 0)


def pace_of(numbers: Sequence[float]) -> Pace:
    """The pace in a message."""
    rate, momentum, tick, time = numbers
    return Pace(rate, momentum, int(tick), time)
