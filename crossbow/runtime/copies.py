"""Copies of z that ranks have when another one is lost while they train without a barrier."""

from __future__ import annotations

import math
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
