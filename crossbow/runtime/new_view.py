"""The events of a new view during training: ranks have left, joined, or taken the place of rank 0."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.cluster.members import Lost, Rank


@dataclass(frozen=True)
class _NewView:
    """The continuation of training with the ranks of a new view."""

    view: int
    """Number of the new view."""
    ranks: int
    """Number of ranks of the new view."""
    learners: int
    """Number of learners of these ranks."""
    tick: int
    """Number of ticks of the base model with which training continues."""
    tasks: int
    """Number of tasks of that base model."""
    seconds: float
    """Time from the end of training with the old ranks to the beginning with the new ones."""
    enough: bool
    """Whether there are enough ranks; otherwise training pauses."""

    def _goes_on(self) -> str:
        ranks = f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        learners = f"{self.learners} learner{'' if self.learners == 1 else 's'}"
        what = "goes on" if self.enough else "pauses"
        return f"Training {what} after task {self.tasks:,}, with {ranks} and {learners} ({self.seconds:.1f} s)"


@dataclass(frozen=True)
class Departure(_NewView):
    """Ranks have left, and training continues with the others."""

    lost: tuple[Lost, ...]
    lost_merges: int = 0
    """The largest known number of merges that a part of the base model lacks: without a barrier, merges of a lost
    server that no learner has read are lost."""

    def __str__(self) -> str:
        left = "; ".join(f"{lost.rank} left: {lost.reason}" for lost in self.lost)
        merges = f"{self.lost_merges:,} merge{'' if self.lost_merges == 1 else 's'}"
        lacks = f"A part of the base model lacks {merges}. " if self.lost_merges else ""
        return f"{left}. {lacks}{self._goes_on()}"


@dataclass(frozen=True)
class NewRanks(_NewView):
    """Ranks have joined, and training continues with them."""

    new: tuple[Rank, ...]

    def __str__(self) -> str:
        return f"{'; '.join(f'{rank} joined' for rank in self.new)}. {self._goes_on()}"


@dataclass(frozen=True)
class NewCoordinator:
    """Another rank has replaced rank 0, which has left: it decides, prints, and writes the files."""

    rank: Rank
    """The rank, with its number before."""
    view: int
    """Number of the new view."""
    tick: int
    """Number of ticks of the base model with which training continues."""
    tasks: int
    """Number of tasks of that base model."""

    def __str__(self) -> str:
        return f"{self.rank} is now rank 0, which decides and writes the files"
