"""The order of examples: pure functions of the seed and of positions, never of timing."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from crossbow.data.examples import Epochs, Indices
from crossbow.types import DataError

_PURPOSE = 0x6F72646572
"""Separates these random numbers ("order") from others with the same seed."""


def permutation(number_of_examples: int, seed: int, epoch: int) -> Indices:
    """The order of the examples in an epoch: the ranks of as many random words of Philox4x64-10, key (seed, epoch).

    Sorting words instead of shuffling with a generator gives the same order in every version of NumPy, which
    guarantees only the words. (Two equal words, with probability N² / 2⁶⁵, keep the order of their indices.)
    """
    mask = 2**64 - 1
    key = np.array([seed & mask, epoch & mask], np.uint64)
    words = np.random.Philox(key=key, counter=[0, 0, 0, _PURPOSE]).random_raw(number_of_examples)
    return np.argsort(words, kind="stable")


class Order(Protocol):
    """Defines the examples of each task's batch. Only one thread at a time calls `indices`."""

    batch_size: int
    seed: int
    """Seed of the order, and of random choices for an example."""

    @property
    def tasks(self) -> int | None:
        """Number of tasks; None is unlimited."""

    def indices(self, task: int, out: Indices, epochs: Epochs | None = None) -> int:
        """Write the example indices of a task to `out` (batch_size,). Returns the number of real examples.

        The rest is padding: valid indices whose examples do not count. The epoch of each example, from 0, is written
        to `epochs` (batch_size,), if given.
        """


class TrainingOrder:
    """The endless sequence of the epochs' permutations; task n takes positions [n·B, (n+1)·B).

    So every example occurs once per epoch, and a batch at the end of an epoch is completed from the next one.

    >>> order = TrainingOrder(number_of_examples=5, batch_size=2, seed=0)
    >>> out = np.empty(2, np.intp)
    >>> order.indices(7, out), order.tasks_in_epochs(1), order.tasks_in_epochs(2)
    (2, 3, 5)
    """

    def __init__(self, number_of_examples: int, batch_size: int, seed: int) -> None:
        _check_sizes(number_of_examples, batch_size)
        if batch_size > number_of_examples:
            raise DataError(
                f"expected a batch no larger than the training set of {number_of_examples} examples. "
                f"Received: batch_size={batch_size}"
            )
        self.number_of_examples = number_of_examples
        self.batch_size = batch_size
        self.seed = seed
        # The current permutation. Tasks come in order, so an epoch is not needed again once the next has begun.
        self._epoch = -1
        self._permutation: Indices = np.empty(0, np.intp)

    @property
    def tasks(self) -> None:
        return None

    @property
    def tasks_per_epoch(self) -> float:
        """N / B, not necessarily an integer: an epoch may end within a task."""
        return self.number_of_examples / self.batch_size

    def tasks_in_epochs(self, count: int) -> int:
        """Number of tasks in the first `count` epochs: ⌈count · N / B⌉."""
        return -(-count * self.number_of_examples // self.batch_size)

    def epochs_in_tasks(self, tasks: int) -> int:
        """Number of complete epochs in the first `tasks` tasks: ⌊tasks · B / N⌋."""
        return tasks * self.batch_size // self.number_of_examples

    def indices(self, task: int, out: Indices, epochs: Epochs | None = None) -> int:
        position, filled = task * self.batch_size, 0
        while filled < self.batch_size:
            epoch, start = divmod(position + filled, self.number_of_examples)
            if epoch != self._epoch:
                self._permutation = permutation(self.number_of_examples, self.seed, epoch)
                self._epoch = epoch
            count = min(self.batch_size - filled, self.number_of_examples - start)
            out[filled : filled + count] = self._permutation[start : start + count]
            if epochs is not None:
                epochs[filled : filled + count] = epoch
            filled += count
        return filled


class CheckOrder:
    """Every example once, in the order of the data set. A short last batch is padded with the last example.

    >>> order, out = CheckOrder(number_of_examples=5, batch_size=2), np.empty(2, np.intp)
    >>> order.tasks, order.indices(2, out), out.tolist()
    (3, 1, [4, 4])
    """

    def __init__(self, number_of_examples: int, batch_size: int) -> None:
        _check_sizes(number_of_examples, batch_size)
        self.number_of_examples = number_of_examples
        self.batch_size = batch_size
        self.seed = 0
        self._positions = np.arange(batch_size)

    @property
    def tasks(self) -> int:
        return -(-self.number_of_examples // self.batch_size)

    def indices(self, task: int, out: Indices, epochs: Epochs | None = None) -> int:
        start = task * self.batch_size
        if not 0 <= start < self.number_of_examples:
            raise IndexError(f"expected 0 ≤ task < {self.tasks}. Received: {task}")
        np.add(self._positions, start, out=out)
        np.minimum(out, self.number_of_examples - 1, out=out)
        if epochs is not None:
            epochs[...] = 0
        return min(self.batch_size, self.number_of_examples - start)


def _check_sizes(number_of_examples: int, batch_size: int) -> None:
    for name, value in (("number_of_examples", number_of_examples), ("batch_size", batch_size)):
        if value < 1:
            raise DataError(f"{name}: expected an integer ≥ 1. Received: {value}")
