"""Ranks that Ray connects, from the point of view of one of them. This module does not import Ray: `post` calls its
actors."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from crossbow.cluster.members import Changes, GivenUp, Lost, Rank, View
from crossbow.cluster.ray.mailbox import Envelope, Mailbox
from crossbow.cluster.transport import Channel, Pending
from crossbow.types import Array

Post = Callable[[int, Envelope], None]
"""Function that sends a letter to a process, which `ViewChange.processes` numbers. It copies the content before it
returns."""

CALL = 8 << 20
"""Bytes that could be transferred in the time of an empty call of an actor, which takes milliseconds."""
LEAST_BLOCK = 1 << 18
"""Size in bytes."""
ERAS_OF_A_VIEW = 1 << 32
"""Upper limit of the number of eras of a view."""


@dataclass(frozen=True)
class ViewChange:
    """A new view."""

    view: View
    processes: tuple[int, ...]
    """The process of each rank, by the number with which it was started."""
    lost: tuple[Lost, ...] = ()
    """The ranks that have left since the previous view."""
    joined: tuple[Rank, ...] = ()
    """The ranks that have joined since the previous view."""


class RayTransport:
    """Implements `Transport`."""

    elastic = True

    def __init__(self, process: int, change: ViewChange, mailbox: Mailbox, post: Post) -> None:
        """process: number with which this process was started. change: the first view."""
        self._process, self._mailbox, self._post = process, mailbox, post
        self._lock = threading.Lock()
        self._changes: list[ViewChange] = [change]
        self._processes = change.processes
        self._forgotten = 0
        """Number of times that the letters of this view were forgotten."""
        self.given_up = False
        """Whether the other ranks continue without this one."""
        self.regroup()

    def block(self, nbytes: int) -> int:
        # Along the chain and back, a block is sent 2 (ranks − 1) times, and each further block arrives later by a call
        # and its transfer. So n blocks take (2 (ranks − 1) + n − 1) (CALL + nbytes / n), which this n minimises.
        number = math.sqrt((2 * len(self.view) - 3) * nbytes / CALL)
        return max(LEAST_BLOCK, math.ceil(nbytes / max(1, round(number))))

    # Views

    def change(self, change: ViewChange) -> None:
        """Record a new view, which begins with `regroup`."""
        with self._lock:
            self._changes.append(change)

    def changed(self) -> bool:
        return bool(self._changes) or self.given_up

    def regroup(self) -> Changes:
        with self._lock:
            changes, self._changes = self._changes, []
        self.given_up = self.given_up or bool(changes and self._process not in changes[-1].processes)
        if self.given_up:
            raise GivenUp
        if not changes:
            return Changes()
        newest = changes[-1]
        before, self.view, self._processes = self._processes, newest.view, newest.processes
        for process in set(before) - set(self._processes):  # it may be alive, but unreachable
            self._give_up(process)
        self.rank = self._processes.index(self._process)
        self._forgotten = 0
        self._mailbox.begin(self._era)
        lost = tuple(lost for change in changes for lost in change.lost)
        joined = {change.processes[rank.number] for change in changes for rank in change.joined}
        ranks = zip(self._processes, self.view.ranks, strict=True)
        return Changes(lost, tuple(rank for process, rank in ranks if process in joined))

    def forget(self) -> None:
        self._forgotten += 1
        self._mailbox.begin(self._era)

    @property
    def _era(self) -> int:
        """Number of the current era, which ends with the view, or when letters are forgotten."""
        return self.view.number * ERAS_OF_A_VIEW + self._forgotten

    def _give_up(self, process: int) -> None:
        """Tell a process that it is not a rank any more."""
        self._post(process, self._letter(Channel.GIVEN_UP, b""))

    # Messages

    def take_in(self, letter: Envelope) -> None:
        """Accept a letter. If it is of an older era, and the current ranks have given up its sender, the sender is told
        so. Any thread may call this."""
        if letter.channel == Channel.GIVEN_UP:
            self.given_up = True
        elif not self._mailbox.deliver(letter) and letter.process not in self._processes:
            self._give_up(letter.process)

    def _letter(self, channel: int, content: Any, *, array: bool = False) -> Envelope:
        return Envelope(self._era, self.rank, channel, array, content, self._process)

    def send(self, message: bytes, rank: int, channel: int) -> None:
        self._post(self._processes[rank], self._letter(channel, message))

    def receive(self, channel: int, rank: int | None = None) -> tuple[int, bytes] | None:
        return self._mailbox.take(channel, rank)

    # Arrays

    def send_array(self, array: Array, rank: int, channel: int) -> Pending:
        content = array.view(np.uint8)
        self._post(self._processes[rank], self._letter(channel, content, array=True))
        return Sent()

    def receive_array(self, array: Array, rank: int, channel: int) -> Pending:
        return self._mailbox.post(array, rank, channel)

    def sum_array(self, array: Array) -> Pending:
        return TreeSum(self, array)

    def abort(self, status: int) -> NoReturn:
        """End this process's program; the launcher then ends all."""
        raise SystemExit(status)


class Sent:
    """Implements `Pending` for an array that was copied when it was sent."""

    def done(self) -> bool:
        return True


class TreeSum:
    """Implements `Pending`: array ← the sum of all ranks' arrays.

    In round d = 1, 2, 4, … each rank r that is a multiple of 2·d adds the sum of rank r + d. The whole sum then returns
    by the same way.
    """

    def __init__(self, transport: RayTransport, array: Array) -> None:
        self._steps, self._done = self._run(transport, array), False

    def done(self) -> bool:
        self._done = self._done or next(self._steps, None) is None
        return self._done

    @staticmethod
    def _run(transport: RayTransport, array: Array) -> Iterator[Pending]:
        """Yield a transfer for as long as it is not done."""
        rank, size = transport.rank, len(transport.view)
        children, distance = [], 1
        while distance < size and rank % (2 * distance) == 0:
            if rank + distance < size:
                children.append(rank + distance)
            distance *= 2
        for child in children:
            part = np.empty_like(array)
            yield from _waits(transport.receive_array(part, child, Channel.SUM))
            np.add(array, part, out=array)
        if rank:
            parent = rank - distance
            transport.send_array(array, parent, Channel.SUM)
            yield from _waits(transport.receive_array(array, parent, Channel.SUM))
        for child in reversed(children):
            transport.send_array(array, child, Channel.SUM)


def _waits(pending: Pending) -> Iterator[Pending]:
    while not pending.done():
        yield pending
