"""Grouping: synchronous within a group of learners, asynchronous between groups."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from crossbow.conf import Domain, is_integer, parameters, setting
from crossbow.synch.asynchronous import _Asynchronous
from crossbow.synch.rule import Arrival

ALIKE = 1.25
"""Maximum ratio of neighbouring speeds within a group."""

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Partition(Domain):
    """Divisions of learners into groups: lists of learners, a number of groups, or None."""

    @property
    def allowed(self) -> str:
        return "lists of learners from 0 on, each in one, as ((0, 1), (2,)), an integer ≥ 1, or None"

    @property
    def placeholder(self) -> str:
        return "G"

    @property
    def form(self) -> str:
        return "groups of learners, as 0,1/2,3, or their number"

    def canonical(self, value: Any) -> Groups | int | None:
        if isinstance(value, list | tuple):
            whole = [tuple(group) if isinstance(group, list | tuple) else () for group in value]
            members = [learner for group in whole for learner in group]
            if value and all(whole) and all(map(is_integer, members)) and sorted(members) == [*range(len(members))]:
                return tuple(whole)
        elif value is None or (is_integer(value) and value >= 1):
            number: int | None = value
            return number
        raise ValueError(value)

    def read(self, text: str) -> Groups | int:
        """Groups of any learners, which the rule validates."""
        if text.isdigit():
            return int(text)
        return tuple(tuple(int(learner) for learner in group.split(",")) for group in text.split("/"))

    def write(self, value: Any) -> str:
        return groups_text(value) if isinstance(value, tuple) else super().write(value)


@parameters
class Grouping(_Asynchronous):
    """Group-based synchronisation with a weighting factor (MXNet-G's dist_gsync)::

        when all n_G learners of group G have arrived:   z ← solver(z, ω Σ g_i),  ω = 1 / (n_G · Y_G);   they take z

    Y_G = 1 + the number of merges of other groups since G's last merge. So a group steps along its mean gradient, and
    the step is shorter the more the other groups have moved z. ω scales the gradient, not the weight decay.

    groups: a list of lists of learners, with every learner in one list; an integer, for that number of groups of
    consecutive learners; or None, for groups of learners of similar speed, which is measured during training. One
    group is S-SGD; groups of one learner are asynchronous SGD with the weight 1/staleness.

    Use it for devices of different speeds.

    See also: `SSGD`, `AsynchronousSGD`.
    """

    name: ClassVar[str] = "grouping"

    groups: Groups | int | None = setting(Partition(), default=None, meaning="by speed")
    """Learners of each group, as 0,1/2,3, or a number of groups."""
    tau: int = 1

    def __post_init__(self) -> None:
        self._check_one("tau", "a gradient is sent at every step")

    @property
    def sends_gradient(self) -> bool:
        return True

    def check_learners(self, learners: int) -> None:
        if isinstance(self.groups, tuple) and sum(map(len, self.groups)) != learners:
            raise self.refuse("groups", self.groups, f"groups of {learners} learners together")
        if is_integer(self.groups) and self.groups > learners:  # type: ignore[operator]
            raise self.refuse("groups", self.groups, f"at most the number of learners, {learners}")

    def fitted(self, learners: int) -> Grouping:
        """The rule for a new number of learners. Given groups of another number of learners are replaced by the same
        number of groups of consecutive learners, but at most one group per learner."""
        number = len(self.groups) if isinstance(self.groups, tuple) else self.groups
        if number is None or (isinstance(self.groups, tuple) and sum(map(len, self.groups)) == learners):
            return self
        return dataclasses.replace(self, groups=min(number, learners))

    def settled(self, speeds: Sequence[float]) -> Grouping:
        self.check_learners(len(speeds))
        if isinstance(self.groups, tuple):
            return self
        found = groups_by_speed(speeds) if self.groups is None else neighbours(len(speeds), self.groups)
        return dataclasses.replace(self, groups=found)

    def contributors(self, learner: int, learners: int) -> tuple[int, ...]:
        if isinstance(self.groups, tuple):
            return self._group_of[learner]
        return _of_equal_speed(self, learners)._group_of[learner]

    @cached_property
    def _group_of(self) -> dict[int, tuple[int, ...]]:
        """The group of each learner; cached because every arrival needs it."""
        assert isinstance(self.groups, tuple)
        return {learner: group for group in self.groups for learner in group}

    def tasks_per_merge(self, learners: int) -> int:
        """Size of the largest group."""
        return max(len(self.contributors(learner, learners)) for learner in range(learners))

    def omega(self, arrival: Arrival) -> float:
        return 1 / (arrival.contributors * arrival.staleness)

    def may_start(self, clocks: Sequence[int], waiting: Collection[int], learner: int) -> bool:
        group = self.contributors(learner, len(clocks))
        return len(group) <= len(waiting) and set(waiting).issuperset(group)

    def starters(self, clocks: Sequence[int], waiting: Collection[int], learners: Collection[int]) -> list[int]:
        groups = self.groups if isinstance(self.groups, tuple) else _of_equal_speed(self, len(clocks)).groups
        assert isinstance(groups, tuple)
        waiting = set(waiting)
        going = {learner for group in groups if waiting.issuperset(group) for learner in group}
        return [learner for learner in learners if learner in going] if going else []


@lru_cache(maxsize=8)
def _of_equal_speed(rule: Grouping, learners: int) -> Grouping:
    """The rule with definite groups; cached because every arrival needs them."""
    return rule.settled([1.0] * learners)


def groups_text(groups: Groups) -> str:
    """Groups as on the command line.

    >>> groups_text(((0, 2), (1,)))
    '0,2/1'
    """
    return "/".join(",".join(map(str, group)) for group in groups)


def neighbours(learners: int, number: int) -> Groups:
    """The given number of groups of consecutive learners, of sizes as equal as possible.

    >>> neighbours(5, 2)
    ((0, 1), (2, 3, 4))
    """
    bounds = [learners * group // number for group in range(number + 1)]
    return tuple(tuple(range(first, last)) for first, last in itertools.pairwise(bounds))


def groups_by_speed(speeds: Sequence[float]) -> Groups:
    """Groups of learners of similar speed, the fastest first. In order of speed, a new group begins where the next
    learner is slower by more than the factor ALIKE.

    >>> groups_by_speed([1.0, 4.0, 1.1, 3.9])
    ((1, 3), (0, 2))
    """
    order = sorted(range(len(speeds)), key=lambda learner: (-speeds[learner], learner))
    groups = [[order[0]]]
    for before, learner in itertools.pairwise(order):
        if speeds[before] > ALIKE * speeds[learner]:
            groups.append([])
        groups[-1].append(learner)
    return tuple(tuple(sorted(group)) for group in groups)
