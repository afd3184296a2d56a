"""Processes of a launcher as threads, connected by their mailboxes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from crossbow.cluster.ranks import Ranks
from crossbow.cluster.ray.mailbox import Envelope, Mailbox
from crossbow.cluster.ray.roster import Roster
from crossbow.cluster.ray.transport import RayTransport


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

    def ranks(self) -> list[Ranks]:
        return [Ranks(transport.view, transport.rank, transport) for transport in self.transports]

    def process_of(self, ranks: Ranks) -> int:
        """The process that a rank has in its newest view."""
        return self.roster.alive[ranks.rank]

    def lose(self, process: int, reason: str = "killed") -> None:
        """Tell the others that a process has ended."""
        with self._lock:
            change = self.roster.lose(process, reason)
            for other in self.roster.alive:
                self.transports[other].change(change)
