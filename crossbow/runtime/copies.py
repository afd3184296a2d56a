"""The ranks' copies of z, when a rank is lost while they train without a barrier."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

WHOLE = math.inf
"""Precedence of a range of z itself."""


class Copy(NamedTuple):
    """A rank's copy of a range of z, times its mass."""

    start: int
    stop: int
    mass: float
    """The mass. The mean of several ranks' copies is their sum, divided by the sum of their masses."""
    merges: int
    """Number of merges that the copy includes."""
    precedence: float
    """Copies with the highest precedence determine the new z. It is `WHOLE`, or the number of merges if the copies
    differ in it."""


class Copies(NamedTuple):
    """A rank's copies of z."""

    copies: tuple[Copy, ...]
    """A copy of each range; the ranges are the same on all ranks."""
    merges: int
    """Number of merges that the rank knows of."""
    share: float
    """The rank's share of all learners. Its z has this share of the local variables and statistics: their mean is the
    sum over the ranks, divided by the sum of the shares."""


def newest(copies: Mapping[int, Copy]) -> dict[int, Copy]:
    """The ranks' copies of one range that determine the new z.

    >>> old, new = Copy(0, 9, 1.0, 4, 4), Copy(0, 9, 1.0, 6, 6)
    >>> list(newest({0: old, 1: new, 3: new}))
    [1, 3]
    """
    highest = max(copy.precedence for copy in copies.values())
    return {rank: copy for rank, copy in copies.items() if copy.precedence == highest}


def is_complete(ranks: Iterable[Iterable[Copy]]) -> bool:
    """Whether these ranks together have all of z itself."""
    return all(any(copy.precedence == WHOLE for copy in copies) for copies in zip(*ranks, strict=True))
