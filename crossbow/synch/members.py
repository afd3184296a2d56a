"""Learners that leave and join a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crossbow.conf import is_integer, is_number
from crossbow.synch.arguments import listed, refused


class Change(NamedTuple):
    """A learner joins or leaves."""

    time: float
    learner: int
    joins: bool


Leaving = Iterable[tuple[float, int]]


def changes_of(learners: int, leave: Leaving, join: Leaving) -> tuple[Change, ...]:
    """The changes in order of time; learners leave before others join at the same time. Raises ConfigurationError
    unless every learner that leaves is present, every learner that joins is absent, and at least one always remains."""
    changes = [Change(*pair, joins=False) for pair in _pairs("leave", leave)]
    changes += [Change(*pair, joins=True) for pair in _pairs("join", join)]
    there, known = set(range(learners)), learners
    changes.sort(key=lambda change: (change.time, change.joins))
    for change in changes:
        _, learner, joins = change
        if not joins:
            if learner not in there or len(there) == 1:
                allowed = "pairs of a time and a learner that is there then, and not the last one"
                raise refused("leave", leave, allowed)
            there.remove(learner)
            continue
        if learner in there or learner > known:
            raise refused("join", join, "pairs of a time and a learner that has left, or the next number")
        there.add(learner)
        known = max(known, learner + 1)
    return tuple(changes)


def numbers_of(learners: int, changes: Sequence[Change]) -> int:
    """The number of different learners over time."""
    return max([learners, *(change.learner + 1 for change in changes)])


def memberships(learners: int, changes: Sequence[Change]) -> list[tuple[int, ...]]:
    """The learners that are present at first, and after each change.

    >>> memberships(2, [Change(1.0, 0, joins=False), Change(2.0, 2, joins=True)])
    [(0, 1), (1,), (1, 2)]
    """
    there = [tuple(range(learners))]
    for change in changes:
        others = set(there[-1]) - {change.learner}
        there.append(tuple(sorted(others | {change.learner} if change.joins else others)))
    return there


def present_hosts(hosts: Sequence[range], members: Iterable[int]) -> list[tuple[int, ...]]:
    """The present learners of each host that has any.

    >>> present_hosts([range(0, 2), range(2, 3), range(3, 5)], {1, 3, 4})
    [(1,), (3, 4)]
    """
    there = set(members)
    present = [tuple(learner for learner in host if learner in there) for host in hosts]
    return [learners for learners in present if learners]


def _pairs(name: str, value: object) -> list[tuple[float, int]]:
    pairs = listed(value)
    rows = None if pairs is None else [listed(pair) for pair in pairs]
    if rows is None or not all(row is not None and len(row) == 2 and _is_change(*row) for row in rows):
        raise refused(name, value, "pairs of a time ≥ 0 and a learner's number, as [(10.0, 2)]")
    return [(float(time), learner) for time, learner in rows]  # type: ignore[misc]


def _is_change(time: object, learner: object) -> bool:
    return is_number(time) and time >= 0 and is_integer(learner) and learner >= 0  # type: ignore[operator]
