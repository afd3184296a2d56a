"""The part of a training call between two records, and the state of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from crossbow.types import Array


class RunState(NamedTuple):
    """The state of a training call, for a checkpoint."""

    values: dict[str, Any]
    """The state, as JSON values."""
    losses: Array
    """The losses in the moving window."""


@dataclass
class Stretch:
    """A part of training between two records."""

    first: int
    """Number of tasks before the stretch."""
    learning_rate: float
    """Learning rate of its last tick."""
    arrivals: tuple[int, int, int] | None
    """Numbers of contributions before the stretch; see `Observation.arrivals`."""
    one_engine: bool = True
    """Whether the same engine has trained since the beginning of the stretch."""
    images: int = 0
    seconds: float = 0.0
    """Seconds of training in the stretch, up to the last pause."""

    def count(self, images: int) -> None:
        """Add images."""
        self.images += images

    def extend(self, seconds: float, learning_rate: float, *, one_engine: bool) -> None:
        """Add the time up to a pause or the end. learning_rate: learning rate of the last tick."""
        self.seconds += seconds
        self.learning_rate = learning_rate
        self.one_engine = self.one_engine and one_engine
