"""The examples that loaders leave out because they cannot be read."""

from __future__ import annotations

import threading

import numpy as np

from crossbow.cluster.ranks import Ranks
from crossbow.data.examples import BadExample, Indices
from crossbow.data.order import Mask
from crossbow.types import DataError


class BadExamples:
    """The bad examples of one phase that have been found so far. Several loaders may share an object, and any thread
    may use it."""

    def __init__(self, number_of_examples: int, numbers: Indices | None = None) -> None:
        """numbers: the number of each example (N,) in the whole set, by which bad examples are listed; None if the
        examples are the whole set."""
        self.mask: Mask = np.zeros(number_of_examples, np.bool_)
        """Whether each example (N,) is known to be bad; never all of them."""
        self._masked = 0
        self._numbers = numbers
        self._places = None if numbers is None else {number: place for place, number in enumerate(numbers.tolist())}
        self._lock = threading.Lock()
        self._found: dict[int, BadExample] = {}
        """Bad examples by their number in the whole set."""
        self._taken = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(self, error: BadExample) -> None:
        """Add an example that could not be read. Adding it again has no effect. Raises DataError if there is no good
        example."""
        number = error.index if self._numbers is None else int(self._numbers[error.index])
        # A new object: the error's traceback would keep the loader's arrays alive.
        self.add_known(BadExample(number, error.source, error.reason))

    def add_known(self, known: BadExample) -> None:
        """Add an example of the whole set, as `all` lists it."""
        place = known.index if self._places is None else self._places.get(known.index)
        with self._lock:
            if known.index in self._found:
                return
            if place is not None:
                if self._masked + 1 == len(self.mask):
                    first, count = next(iter(self._found.values()), known), len(self.mask)
                    raise DataError(
                        f"expected an example that can be decoded. Received: {count:,} that cannot, the first: {first}"
                    )
                self._masked += 1
                self.mask[place] = True
            self._found[known.index] = known

    def continue_from(self, other: BadExamples) -> None:
        """Start with the bad examples that another object has found in the same set. This object must be empty."""
        for each in other.all():
            self.add_known(each)
        self._taken = other._taken

    def share(self, ranks: Ranks) -> None:
        """Add the examples that any rank has found. All ranks must call this at the same time."""
        if not ranks.several:
            return
        for found in ranks.gather([(each.index, each.source, each.reason) for each in self.all()]):
            for index, source, reason in found:
                self.add_known(BadExample(index, source, reason))

    def all(self) -> list[BadExample]:
        """All bad examples, in the order in which they were found."""
        with self._lock:
            return list(self._found.values())

    def take_new(self) -> list[BadExample]:
        """The bad examples that were found since the last call."""
        if len(self._found) == self._taken:
            return []
        new = self.all()[self._taken :]
        self._taken += len(new)
        return new
