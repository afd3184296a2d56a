"""The interface between ranks and the system that connects them, such as MPI."""

from __future__ import annotations

import enum
from typing import Protocol

from crossbow.cluster.members import Changes, View
from crossbow.types import Array


class Channel(enum.IntEnum):
    """Purpose of a message. Messages of one rank to another on one channel arrive in order. The results of tasks have
    a channel for each model of the program, from `RESULTS` on."""

    AGREEMENT = 1
    """A decision of rank 0."""
    GATHERING = 2
    """A value of every rank."""
    REQUEST = 3
    """A rank's request to rank 0 to stop."""
    PARTIAL = 4
    """A partial sum, over the ranks so far."""
    WHOLE = 5
    """A sum over all ranks."""
    NOTE = 6
    """Under a rule without a barrier, the description of a message between learners."""
    VECTOR = 7
    """The vector of such a message."""
    SUM = 8
    """A sum over some ranks, in a tree of the transport."""
    FAILURE = 9
    """A rank's failure in a call that all ranks make, or its end."""
    GIVEN_UP = 10
    """A notice that the other ranks continue without the receiver."""


RESULTS = 16
"""The channel for the results of the first model's tasks. The channels of the other models follow."""


class Pending(Protocol):
    """A transfer that has begun. Its array must neither be changed nor, if it receives, be read until it is done."""

    def done(self) -> bool:
        """Whether the transfer is done. Returns at once."""


class Transport(Protocol):
    """Connects ranks. All methods return at once, and any thread may call them."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def view(self) -> View: ...

    @property
    def elastic(self) -> bool:
        """Whether ranks may join and leave. Otherwise a lost rank ends the job."""

    def block(self, nbytes: int) -> int:
        """Bytes of a vector of this size that travel together along a chain: while one block travels, ranks add to
        another."""

    def changed(self) -> bool:
        """Whether there is a newer view, so that no answer may come from ranks of this one."""

    def regroup(self) -> Changes:
        """Continue in the newest view, and forget all messages that have not been received. Returns the changes. Other
        threads may receive meanwhile, but not send. Raises GivenUp if this rank is not in the view."""

    def forget(self) -> None:
        """Forget all messages that have not been received. All ranks call this at the same time. Messages that a rank
        sends afterwards reach ranks that have called it, too."""

    def send(self, message: bytes, rank: int, channel: int) -> None:
        """Send a message to a rank."""

    def receive(self, channel: int, rank: int | None = None) -> tuple[int, bytes] | None:
        """The next message from this rank, or from any, with the number of its rank; None if none has arrived."""

    def send_array(self, array: Array, rank: int, channel: int) -> Pending:
        """Send a contiguous array to a rank, which receives it with `receive_array`."""

    def receive_array(self, array: Array, rank: int, channel: int) -> Pending:
        """Receive the next array from a rank, of the same size and type, in place."""

    def sum_array(self, array: Array) -> Pending:
        """array ← the sum of all ranks' arrays, with the same bits on each. All ranks sum equal arrays in the same
        order."""

    def abort(self, status: int) -> None:
        """End the processes of all ranks with this exit status. Does not return."""
