"""The learners and the tasks that belong to a rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """The learners of a rank among all learners.

    Tasks rotate over all learners: of every k consecutive tasks, `own` belong to this rank.

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
        """The placement of a rank that has all learners."""
        return cls(learners, 0, learners)

    @property
    def whole(self) -> bool:
        """Whether this rank has all learners."""
        return self.own == self.learners

    def has(self, learner: int) -> bool:
        """Whether this rank has the learner."""
        return self.first <= learner < self.first + self.own

    def task(self, index: int) -> int:
        """The number of this rank's task with this index."""
        turn, learner = divmod(index, self.own)
        return turn * self.learners + self.first + learner

    def own_of(self, tasks: int) -> int:
        """The number of this rank's tasks among the first `tasks` tasks."""
        turns, rest = divmod(tasks, self.learners)
        return turns * self.own + min(max(rest - self.first, 0), self.own)
