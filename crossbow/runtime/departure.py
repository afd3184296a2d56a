"""The events that ranks have left, or joined, during training."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.cluster.members import Lost, Rank


@dataclass(frozen=True)
class Departure:
    """Ranks have left, and training goes on with the others."""

    lost: tuple[Lost, ...]
    view: int
    """Number of the new view."""
    ranks: int
    """Number of ranks that are left."""
    learners: int
    """Number of their learners."""
    tick: int
    """Number of ticks of the base model with which training goes on."""
    tasks: int
    """Number of its tasks."""
    seconds: float
    """Time from the end of training with the old ranks to the beginning with the new ones."""

    def __str__(self) -> str:
        return f"{'; '.join(f'{lost.rank} left: {lost.reason}' for lost in self.lost)}. {_goes_on(self)}"


@dataclass(frozen=True)
class NewRanks:
    """Ranks have joined, and training goes on with them."""

    new: tuple[Rank, ...]
    view: int
    """Number of the new view."""
    ranks: int
    """Number of all ranks."""
    learners: int
    """Number of their learners."""
    tick: int
    """Number of ticks of the base model with which training goes on."""
    tasks: int
    """Number of its tasks."""
    seconds: float
    """Time from the end of training with the old ranks to the beginning with the new ones."""

    def __str__(self) -> str:
        return f"{'; '.join(f'{rank} joined' for rank in self.new)}. {_goes_on(self)}"


def _goes_on(event: Departure | NewRanks) -> str:
    ranks = f"{event.ranks} rank{'' if event.ranks == 1 else 's'}"
    learners = f"{event.learners} learner{'' if event.learners == 1 else 's'}"
    return f"Training goes on after task {event.tasks:,}, with {ranks} and {learners} ({event.seconds:.1f} s)"
