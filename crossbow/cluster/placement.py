"""Which learners, and which tasks, belong to a rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """The learners of a rank among all learners.

    Tasks rotate over all learners: of each k tasks in turn, `own` belong to this rank.

    >>> placement = Placement(learners=4, first=1, own=2)
    >>> [placement.task(index) for index in range(4)], placement.own_of(6)
    ([1, 2, 5, 6], 3)
    """

    learners: int
    """Number of learners of all ranks, k."""
    first: int
    """Number of this rank's first learner."""
    own: int
    """Number of this rank's learners."""

    @classmethod
    def alone(cls, learners: int) -> Placement:
        """The placement of all learners."""
        return cls(learners, 0, learners)

    @property
    def whole(self) -> bool:
        """Whether all learners are this rank's."""
        return self.own == self.learners

    def has(self, learner: int) -> bool:
        """Whether a learner is this rank's."""
        return self.first <= learner < self.first + self.own

    def task(self, index: int) -> int:
        """The number of this rank's task with this index."""
        turn, learner = divmod(index, self.own)
        return turn * self.learners + self.first + learner

    def own_of(self, tasks: int) -> int:
        """How many of the first `tasks` tasks are this rank's."""
        turns, rest = divmod(tasks, self.learners)
        return turns * self.own + min(max(rest - self.first, 0), self.own)
