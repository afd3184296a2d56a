"""The examples that loaders leave out, because they cannot be read."""

from __future__ import annotations

import threading

import numpy as np

from crossbow.cluster.ranks import Ranks
from crossbow.data.examples import BadExample
from crossbow.data.order import Mask
from crossbow.types import DataError


class BadExamples:
    """The bad examples of one phase that were found so far. Several loaders may share them, and any thread may use
    them."""

    def __init__(self, number_of_examples: int) -> None:
        self.mask: Mask = np.zeros(number_of_examples, np.bool_)
        """Whether each example (N,) is known to be bad; never all of them."""
        self._lock = threading.Lock()
        self._found: dict[int, BadExample] = {}
        self._taken = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(self, error: BadExample) -> None:
        """Add an example. Adding it again has no effect. Raises DataError if there is no good example."""
        with self._lock:
            if error.index in self._found:
                return
            if len(self._found) + 1 == len(self.mask):
                first, count = next(iter(self._found.values()), error), len(self.mask)
                raise DataError(
                    f"expected an example that can be decoded. Received: {count:,} that cannot, the first: {first}"
                )
            # A new object: the error's traceback would keep the loader's arrays alive.
            self._found[error.index] = BadExample(error.index, error.source, error.reason)
            self.mask[error.index] = True

    def share(self, ranks: Ranks) -> None:
        """Across ranks, which must call it at the same time, add the examples that any rank has found."""
        if not ranks.several:
            return
        for found in ranks.gather([(each.index, each.source, each.reason) for each in self.all()]):
            for index, source, reason in found:
                self.add(BadExample(index, source, reason))

    def all(self) -> list[BadExample]:
        """All examples that were found, in the order in which they were found."""
        with self._lock:
            return list(self._found.values())

    def take_new(self) -> list[BadExample]:
        """The examples that were found since the last call."""
        if len(self._found) == self._taken:
            return []
        new = self.all()[self._taken :]
        self._taken += len(new)
        return new
