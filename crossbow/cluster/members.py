"""Ranks, and views of the live ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from crossbow.types import CrossbowError


@dataclass(frozen=True)
class Rank:
    """A process of a run, with its own devices and learners."""

    number: int
    """Number of the rank, from 0. Learners are numbered consecutively over all ranks in this order."""
    host: str

    def __str__(self) -> str:
        return f"rank {self.number} ({self.host})"


@dataclass(frozen=True)
class View:
    """The live ranks. A new number means that ranks have joined or left."""

    number: int
    ranks: tuple[Rank, ...]
    enough: bool = True
    """Whether there are enough ranks for training to continue."""

    def __len__(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class Lost:
    """A rank that has left."""

    rank: Rank
    """The rank, with its number before it left."""
    reason: str


class Changes(NamedTuple):
    """The changes between two views."""

    lost: tuple[Lost, ...] = ()
    joined: tuple[Rank, ...] = ()
    """The ranks that have joined, with their numbers in the later view."""

    def followed_by(self, more: Changes) -> Changes:
        """The combination of these changes and later ones. Ranks that have joined and left again do not count as
        joined."""
        joined = self.joined
        for lost in (each.rank.number for each in more.lost):
            joined = tuple(
                replace(rank, number=rank.number - (rank.number > lost)) for rank in joined if rank.number != lost
            )
        return Changes(self.lost + more.lost, joined + more.joined)


class Left(SystemExit):
    """Raised when this rank has finished its tick after a request to leave. The exit status is 5."""

    status = 5

    def __init__(self) -> None:
        super().__init__(self.status)


class Terminated(SystemExit):
    """Raised after a signal has ended training with a checkpoint. The exit status is 143."""

    status = 143

    def __init__(self, number: int) -> None:
        super().__init__(self.status)
        self.number = number
        """The signal."""


class GivenUp(SystemExit):
    """Raised when the other ranks continue without this one, because they could not reach it. The exit status is 4."""

    status = 4

    def __init__(self) -> None:
        super().__init__(self.status)


class NotJoined(SystemExit):
    """Raised when this rank cannot join the others, which continue without it. The exit status is 2."""

    status = 2

    def __init__(self) -> None:
        super().__init__(self.status)


class ViewChangedError(CrossbowError):
    """Ranks have joined or left while others were waiting for them."""


class RankFailedError(CrossbowError):
    """Another rank has failed, or its program has ended, in a call that all ranks make."""
