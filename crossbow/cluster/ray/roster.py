"""The processes that a launcher has started, and the views that result when they join or end."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.cluster.launch import RankLaunch
from crossbow.cluster.members import Lost, Rank, View
from crossbow.cluster.ray.transport import ViewChange


class Roster:
    """Tracks processes and views. Processes keep the numbers with which they were started; ranks are renumbered in each
    view."""

    def __init__(self, hosts: Sequence[str], needed: int = 1) -> None:
        """hosts: host of each process. needed: minimum number of ranks; with fewer, training pauses."""
        self._hosts, self._needed = list(hosts), needed
        self._alive = list(range(len(hosts)))
        self._number = 0

    @property
    def alive(self) -> tuple[int, ...]:
        """The processes that are ranks."""
        return tuple(self._alive)

    @property
    def change(self) -> ViewChange:
        """The current view."""
        return self._change(())

    def launches(self) -> list[RankLaunch]:
        """The launch of each process."""
        hosts = self._hosts
        return [
            RankLaunch(number, len(hosts), hosts[:number].count(host), hosts.count(host))
            for number, host in enumerate(hosts)
        ]

    def add(self, host: str) -> int:
        """Add a process on a host, which is not a rank yet. Returns its number."""
        self._hosts.append(host)
        return len(self._hosts) - 1

    def join(self, process: int) -> ViewChange:
        """The view with a process that was added."""
        self._alive.append(process)
        self._number += 1
        return self._change((), (Rank(len(self._alive) - 1, self._hosts[process]),))

    def lose(self, process: int, reason: str) -> ViewChange:
        """The view without a process."""
        lost = Lost(Rank(self._alive.index(process), self._hosts[process]), reason)
        self._alive.remove(process)
        self._number += 1
        return self._change((lost,))

    def launch_of(self, process: int, number: int) -> RankLaunch:
        """The launch of an added process as rank `number`."""
        host = self._hosts[process]
        before = [self._hosts[each] for each in self._alive].count(host)
        return RankLaunch(number, number + 1, before, before + 1)

    def host(self, process: int) -> str:
        """The host of a process."""
        return self._hosts[process]

    def name(self, process: int) -> str:
        """The name of a process in messages, from its rank in the current view."""
        return str(Rank(self._alive.index(process), self._hosts[process]))

    def _change(self, lost: tuple[Lost, ...], joined: tuple[Rank, ...] = ()) -> ViewChange:
        ranks = tuple(Rank(number, self._hosts[process]) for number, process in enumerate(self._alive))
        return ViewChange(View(self._number, ranks, len(ranks) >= self._needed), tuple(self._alive), lost, joined)
