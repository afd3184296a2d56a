"""Ranks, and views of those that are alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from crossbow.types import CrossbowError


@dataclass(frozen=True)
class Rank:
    """A process of a run, with its own devices and learners."""

    number: int
    """From 0. Learners are numbered through all ranks in this order."""
    host: str

    def __str__(self) -> str:
        return f"rank {self.number} ({self.host})"


@dataclass(frozen=True)
class View:
    """The live ranks. A new number means that ranks have joined or left."""

    number: int
    ranks: tuple[Rank, ...]
    enough: bool = True
    """Whether there are as many ranks as training needs."""

    def __len__(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class Lost:
    """A rank that has left."""

    rank: Rank
    """As it was numbered before."""
    reason: str


class Changes(NamedTuple):
    """What has changed between two views."""

    lost: tuple[Lost, ...] = ()
    joined: tuple[Rank, ...] = ()
    """As they were numbered when they joined."""

    def followed_by(self, more: Changes) -> Changes:
        """These changes and later ones. Ranks that have joined, and left again, have not joined."""
        lost = [each.rank for each in more.lost]
        joined = tuple(rank for rank in self.joined if rank not in lost)
        return Changes(self.lost + more.lost, joined + more.joined)


class Left(SystemExit):
    """This rank was asked to leave, and has finished its tick. The exit status is 5."""

    status = 5

    def __init__(self) -> None:
        super().__init__(self.status)


class GivenUp(SystemExit):
    """The other ranks go on without this one, which they could not reach. The exit status is 4."""

    status = 4

    def __init__(self) -> None:
        super().__init__(self.status)


class NotJoined(SystemExit):
    """This rank cannot join the others, which go on without it. The exit status is 2."""

    status = 2

    def __init__(self) -> None:
        super().__init__(self.status)


class ViewChangedError(CrossbowError):
    """Ranks have joined or left while others were waiting for them."""


class RankFailedError(CrossbowError):
    """Another rank has failed, or its program has ended, in a call that all ranks make."""
