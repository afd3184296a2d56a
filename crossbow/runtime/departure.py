"""The event that ranks have left during training."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.cluster.members import Lost


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
        left = "; ".join(f"{lost.rank} left: {lost.reason}" for lost in self.lost)
        ranks = f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        learners = f"{self.learners} learner{'' if self.learners == 1 else 's'}"
        return f"{left}. Training goes on after task {self.tasks:,}, with {ranks} and {learners} ({self.seconds:.1f} s)"
