"""The parts of a data set that several workers train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer, is_number, plain
from crossbow.types import DataError

Sharding = Literal["stride"] | Sequence[tuple[float, float]]
"""Division of the examples: "stride", where rank r of n has examples r, r + n, r + 2 n, …; or the fractions (begin,
end) of each rank."""


@dataclass(frozen=True)
class RankShare:
    """A rank's part of the training examples."""

    whole: int
    """Number of training examples of all ranks."""
    sizes: tuple[int, ...]
    """Number of examples of each rank."""
    sharding: Sharding
    digest: str
    """Identifies the training examples of all ranks."""

    @property
    def is_equal(self) -> bool:
        """Whether the numbers of examples of all ranks differ by at most one."""
        return max(self.sizes) - min(self.sizes) <= 1

    def numbers(self, rank: int) -> NDArray[np.intp]:
        """The numbers of a rank's examples among the examples of all ranks."""
        return numbers_of_rank(self.whole, self.sharding, rank, len(self.sizes))

    def described(self) -> dict[str, Any]:
        """The properties that identify the examples of all ranks and their division, as JSON values."""
        sharding = self.sharding if isinstance(self.sharding, str) else [list(each) for each in self.sharding]
        return {"training_examples": self.whole, "training_digest": self.digest, "sharding": sharding}


def numbers_of_rank(count: int, sharding: Sharding, rank: int, ranks: int) -> NDArray[np.intp]:
    """The numbers of a rank's examples among all `count` examples. Raises DataError if the rank has none."""
    if sharding == "stride":
        return np.arange(count)[shard_of(count, (rank, ranks), None, None)]
    return np.arange(count)[shard_of(count, None, tuple(sharding[rank]), None)]


def shard_of(count: int, stride: object, fraction: object, offset: object) -> slice | NDArray[np.intp]:
    """The indices that `Dataset.shard` selects from `count` examples. Raises DataError for invalid arguments."""
    given = {"stride": plain(stride), "fraction": plain(fraction), "offset": plain(offset)}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise DataError(f"shard: expected one of stride, fraction and offset. Received: {', '.join(names) or 'none'}")
    (name,) = names
    first, second = _pair(name, given[name])
    if name == "fraction":
        selected: slice | NDArray[np.intp] = slice(round(first * count), round(second * count))
    elif name == "stride":
        selected = slice(first, None, second)
    else:
        selected = np.roll(np.arange(count), -(first * count // second))
    if isinstance(selected, slice) and not len(range(count)[selected]):
        raise DataError(
            f"shard: expected at least one of {count:,} examples. Received: none, with {name}={given[name]}"
        )
    return selected


_EXPECTED = {
    "stride": "a pair (r, k) of integers with 0 ≤ r < k",
    "fraction": "a pair (a, b) of numbers with 0 ≤ a < b ≤ 1",
    "offset": "a pair (i, k) of integers with 0 ≤ i < k",
}


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    """The two numbers of an argument. Raises DataError if it is not a pair."""
    is_one = is_number if name == "fraction" else is_integer
    good = isinstance(value, tuple | list) and len(value) == 2 and all(map(is_one, value))
    if not good or not 0 <= value[0] < value[1] or (name == "fraction" and value[1] > 1):
        raise DataError(f"shard: expected {name} to be {_EXPECTED[name]}. Received: {value!r}")
    return value[0], value[1]
