"""Copies of z that ranks have when another one is lost while they train without a barrier."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

WHOLE = math.inf
"""Precedence of z itself."""


class Copy(NamedTuple):
    """A rank's copy of a range of z, times its mass."""

    start: int
    stop: int
    mass: float
    """The sum of the copies of some ranks, divided by the sum of their masses, is their mean."""
    merges: int
    """Number of merges that the copy has."""
    precedence: float
    """Of the ranks' copies, those with the highest make the new z: `WHOLE`, or the number of merges where the copies
    differ in it."""


class Copies(NamedTuple):
    """What a rank has of z."""

    copies: tuple[Copy, ...]
    """One of every range, the same ranges on all ranks."""
    merges: int
    """Number of merges that the rank knows of."""
    share: float
    """The part of all learners that the rank has. Of z's local variables and statistics it has the same part: the sum
    of the parts divided by the sum of the shares is the mean."""


def newest(copies: Mapping[int, Copy]) -> dict[int, Copy]:
    """Those of the ranks' copies of one range that make the new z.

    >>> old, new = Copy(0, 9, 1.0, 4, 4), Copy(0, 9, 1.0, 6, 6)
    >>> list(newest({0: old, 1: new, 3: new}))
    [1, 3]
    """
    highest = max(copy.precedence for copy in copies.values())
    return {rank: copy for rank, copy in copies.items() if copy.precedence == highest}


def is_complete(ranks: Iterable[Iterable[Copy]]) -> bool:
    """Whether these ranks' copies have all of z itself."""
    return all(any(copy.precedence == WHOLE for copy in copies) for copies in zip(*ranks, strict=True))
