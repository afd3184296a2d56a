"""The ranks of a run: common decisions, and values of all ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from crossbow.cluster.members import Lost, Rank, View, ViewChangedError
from crossbow.cluster.sums import Waiting
from crossbow.cluster.transport import Channel, Transport
from crossbow.types import CrossbowError

SECONDS_TO_START = 120.0
"""Limit of the wait for all ranks before training."""


class Ranks:
    """The ranks of a run, as one of them sees the others. All ranks call `agree`, `agree_on_bytes` and `gather` in the
    same order. A rank without others has no transport, and returns its own values."""

    def __init__(self, view: View, rank: int = 0, transport: Transport | None = None) -> None:
        self.view, self.rank, self._transport = view, rank, transport

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.view)

    @property
    def several(self) -> bool:
        return self.size > 1

    @property
    def connected(self) -> bool:
        """Whether there are other ranks, or there have been."""
        return self._transport is not None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which decides, prints, and writes files."""
        return self.rank == 0

    @property
    def own(self) -> Rank:
        """This rank."""
        return self.view.ranks[self.rank]

    def alone(self) -> Ranks:
        """This rank without the others."""
        return Ranks(View(self.view.number, (self.own,)))

    @property
    def transport(self) -> Transport:
        """The connection to the other ranks, if there are any."""
        assert self._transport is not None
        return self._transport

    # Views

    def check_view(self) -> None:
        """Raise ViewChangedError if ranks have joined or left since the last `regroup`."""
        if self._transport is not None and self._transport.changed():
            raise ViewChangedError(f"a rank has left the {self.size} ranks that were training")

    def regroup(self) -> tuple[Lost, ...]:
        """Continue with the ranks of the newest view. Returns those that have left."""
        lost = self.transport.regroup()
        self.view, self.rank = self.transport.view, self.transport.rank
        return lost

    # Decisions

    def agree(self, decide: Callable[[], Any]) -> Any:
        """What rank 0 decides: a JSON value. Other ranks wait for it, and do not call `decide`."""
        if not self.several:
            return decide()
        value = json.dumps(decide()).encode() if self.is_first else b""
        return json.loads(self.agree_on_bytes(value))

    def agree_on_bytes(self, value: bytes, of: int = 0) -> bytes:
        """The bytes that one rank gives, by default rank 0."""
        if not self.several:
            return value
        if self.rank == of:
            self._to_others(value, Channel.AGREEMENT)
            return value
        return self._await(Channel.AGREEMENT, of, Waiting())

    def ask_to_stop(self, signal: int) -> None:
        """Ask rank 0 to decide to stop, because of this signal."""
        self.transport.send(str(signal).encode(), 0, Channel.REQUEST)

    def asked_to_stop(self) -> int:
        """The signal because of which another rank asks to stop, on rank 0; or 0."""
        received = self.transport.receive(Channel.REQUEST) if self.connected else None
        return 0 if received is None else int(received[1])

    # Values of all ranks

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in rank order. Raises CrossbowError that names the ranks whose value does not
        arrive within `SECONDS_TO_START`."""
        if not self.several:
            return [value]
        if not self.is_first:
            self.transport.send(json.dumps(value).encode(), 0, Channel.GATHERING)
            return list(json.loads(self._await(Channel.GATHERING, 0, Waiting(seconds=2 * SECONDS_TO_START))))
        values = {0: value}
        deadline = time.monotonic() + SECONDS_TO_START
        for rank in self.view.ranks[1:]:
            try:
                left = max(0.0, deadline - time.monotonic())
                values[rank.number] = json.loads(self._await(Channel.GATHERING, rank.number, Waiting(seconds=left)))
            except ViewChangedError:
                raise
            except CrossbowError:
                continue  # the others may be there
        missing = [str(rank) for rank in self.view.ranks if rank.number not in values]
        if missing:
            raise CrossbowError(
                f"expected all {self.size} ranks to begin within {SECONDS_TO_START:g} s. Missing: {', '.join(missing)}"
            )
        gathered = [values[rank.number] for rank in self.view.ranks]
        self._to_others(json.dumps(gathered).encode(), Channel.GATHERING)
        return gathered

    def _to_others(self, message: bytes, channel: Channel) -> None:
        for rank in self.view.ranks:
            if rank.number != self.rank:
                self.transport.send(message, rank.number, channel)

    def _await(self, channel: Channel, rank: int, wait: Waiting) -> bytes:
        """The next message from a rank."""
        received: list[bytes] = []

        def arrived() -> bool:
            message = self.transport.receive(channel, rank)
            if message is not None:
                received.append(message[1])
            else:
                self.check_view()
            return bool(received)

        wait.until(arrived, str(self.view.ranks[rank]))
        return received[0]
