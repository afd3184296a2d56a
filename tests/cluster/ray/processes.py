"""Processes of a launcher as threads, connected by their mailboxes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from crossbow.cluster.admission import Admission, Joining
from crossbow.cluster.members import Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.ray.mailbox import Envelope, Mailbox
from crossbow.cluster.ray.roster import Roster
from crossbow.cluster.ray.transport import RayTransport, ViewChange
from tests.support import until


class Processes:
    """Some processes, of which some can be lost."""

    def __init__(self, hosts: Sequence[str], needed: int = 1) -> None:
        self.roster, self._lock = Roster(hosts, needed), threading.Lock()
        self.mailboxes = [Mailbox() for _ in hosts]
        change = self.roster.change
        self.transports = [
            RayTransport(process, change, mailbox, self.post) for process, mailbox in enumerate(self.mailboxes)
        ]

    def post(self, process: int, letter: Envelope) -> None:
        """Deliver a copy, as Ray does."""
        content = letter.content.copy() if letter.array else letter.content
        self.transports[process].take_in(letter._replace(content=content))

    def ranks(self, admission: Admission | None = None) -> list[Ranks]:
        """All ranks. admission: that of rank 0."""
        return [
            Ranks(each.view, each.rank, each, admission=None if each.rank else admission) for each in self.transports
        ]

    def new(self, host: str, admission: Admission) -> tuple[Ranks, Joining]:
        """A rank that joins, once the others are in a training call."""
        until(admission.journal)
        journal = admission.journal()
        assert journal is not None
        process, number = self.roster.add(host), len(journal.ranks)
        change = ViewChange(View(0, (*journal.ranks, Rank(number, host))), (*range(number), process))
        joining = Joining(journal)
        self.mailboxes.append(Mailbox())
        self.transports.append(RayTransport(process, change, self.mailboxes[-1], self.post))
        return Ranks(change.view, number, self.transports[-1], joining=joining), joining

    def join(self, process: int) -> None:
        """Make a process a rank."""
        with self._lock:
            self._announce(self.roster.join(process))

    def _announce(self, change: ViewChange) -> None:
        for process in change.processes:
            self.transports[process].change(change)

    def process_of(self, ranks: Ranks) -> int:
        """The process that a rank has in its newest view."""
        return self.roster.alive[ranks.rank]

    def lose(self, process: int, reason: str = "killed") -> None:
        """Tell the others that a process has ended."""
        with self._lock:
            self._announce(self.roster.lose(process, reason))
