"""The order of examples: pure functions of the seed and of positions, never of timing."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crossbow.data.examples import Epochs, Indices
from crossbow.types import DataError

Mask = NDArray[np.bool_]

_PURPOSE = 0x6F72646572
"""Separates these random numbers ("order") from others with the same seed."""
_PURPOSE_OF_FILES = 0x66696C6573
"""Separates the random numbers of files ("files")."""

EPOCHS_KEPT = 2
"""Number of permutations that are kept, because the tasks of several threads may belong to two epochs."""


def permutation(number_of_examples: int, seed: int, epoch: int) -> Indices:
    """The order of the examples in an epoch: the ranks of random words of Philox4x64-10, one per example, with the key
    (seed, epoch).

    Sorting words instead of shuffling with a generator gives the same order in every version of NumPy, which
    guarantees only the words. (Two equal words, with probability N² / 2⁶⁵, keep the order of their indices.)
    """
    return np.argsort(_words(number_of_examples, seed, epoch, _PURPOSE), kind="stable")


def permutation_by_files(files: Indices, files_together: int, seed: int, epoch: int) -> Indices:
    """The order of the examples in an epoch in which only a few files are read at a time.

    The files are shuffled, and every `files_together` consecutive files form a group; the last group may have fewer.
    The examples of each group are shuffled, and the groups follow each other.

    files: the file of each example (N,), as numbers from 0 without gaps.
    """
    shuffled = np.argsort(_words(int(files.max()) + 1, seed, epoch, _PURPOSE_OF_FILES), kind="stable")
    group_of_file = np.empty_like(shuffled)
    group_of_file[shuffled] = np.arange(len(shuffled)) // files_together
    return np.lexsort((_words(len(files), seed, epoch, _PURPOSE), group_of_file[files]))


def _words(count: int, seed: int, epoch: int, purpose: int) -> NDArray[np.uint64]:
    """Random words of Philox4x64-10, key (seed, epoch)."""
    mask = 2**64 - 1
    key = np.array([seed & mask, epoch & mask], np.uint64)
    return np.random.Philox(key=key, counter=[0, 0, 0, purpose]).random_raw(count)


class Order(Protocol):
    """Defines the examples of each task's batch. Only one thread at a time calls its methods."""

    batch_size: int
    seed: int
    """Seed of the order, and of random choices for an example."""

    @property
    def tasks(self) -> int | None:
        """Number of tasks; None is unlimited."""

    def begin(self, task: int) -> None:
        """Prepare for a stretch of training in which the learners take turns from this task on."""

    def indices(self, task: int, out: Indices, epochs: Epochs | None = None) -> int:
        """Write the example indices of a task to `out` (batch_size,). Returns the number of real examples.

        The other indices are padding: they are valid, but their examples do not count. The epoch of each example, from
        0, is written to `epochs` (batch_size,), if given.
        """

    def leave_out(self, bad: Mask, task: int, out: Indices, steps: Indices) -> int:
        """Remove the bad examples from a task's indices in `out`. Returns the number of real examples.

        bad: whether each example of the data set (N,) is bad; at least one must not be. steps (batch_size,): state of
        the calls for one task. It must be zero after `indices` has written `out`, and is passed again if more bad
        examples of the task are found. The result does not depend on the number of calls.
        """


class TrainingOrder:
    """The endless sequence of the epochs' permutations; task n takes positions [n·B, (n+1)·B).

    So every example occurs once per epoch, and a batch at the end of an epoch is completed from the next one. A bad
    example is replaced by the next good one in the epoch's permutation; after the last comes the first. The other
    positions do not change, so a substitute occurs twice in the epoch.

    If `files` is given, the number of the file that stores each example (N,), the permutations are those of
    `permutation_by_files`.

    >>> order = TrainingOrder(number_of_examples=5, batch_size=2, seed=0)
    >>> out = np.empty(2, np.intp)
    >>> order.indices(7, out), order.tasks_in_epochs(1), order.tasks_in_epochs(2)
    (2, 3, 5)
    """

    def __init__(
        self, number_of_examples: int, batch_size: int, seed: int, files: Indices | None = None, files_together: int = 1
    ) -> None:
        _check_sizes(number_of_examples, batch_size)
        if batch_size > number_of_examples:
            raise DataError(
                f"expected a batch no larger than the training set of {number_of_examples} examples. "
                f"Received: batch_size={batch_size}"
            )
        self.number_of_examples = number_of_examples
        self.batch_size = batch_size
        self.seed = seed
        # The numbers are made consecutive, because a part of a data set may have no examples of some files.
        self._files = None if files is None else np.unique(files, return_inverse=True)[1].astype(np.intp)
        self._files_together = files_together
        self._permutations: dict[int, Indices] = {}
        """Permutations by epoch, in the order in which they were computed."""

    @property
    def tasks(self) -> None:
        return None

    @property
    def tasks_per_epoch(self) -> float:
        """Number of tasks in an epoch, N / B. It need not be an integer: an epoch may end within a task."""
        return self.number_of_examples / self.batch_size

    def tasks_in_epochs(self, count: int) -> int:
        """Number of tasks in the first `count` epochs: ⌈count · N / B⌉."""
        return -(-count * self.number_of_examples // self.batch_size)

    def epochs_in_tasks(self, tasks: int) -> int:
        """Number of complete epochs in the first `tasks` tasks: ⌊tasks · B / N⌋."""
        return tasks * self.batch_size // self.number_of_examples

    def begin(self, task: int) -> None:
        """Do nothing: the order of a whole data set does not depend on the learners."""

    def indices(self, task: int, out: Indices, epochs: Epochs | None = None) -> int:
        position, filled = task * self.batch_size, 0
        while filled < self.batch_size:
            epoch, start = divmod(position + filled, self.number_of_examples)
            count = min(self.batch_size - filled, self.number_of_examples - start)
            out[filled : filled + count] = self._permutation(epoch)[start : start + count]
            if epochs is not None:
                epochs[filled : filled + count] = epoch
            filled += count
        return filled

    def leave_out(self, bad: Mask, task: int, out: Indices, steps: Indices) -> int:
        for place in np.flatnonzero(bad[out]).tolist():
            epoch, position = divmod(task * self.batch_size + place, self.number_of_examples)
            order, step = self._permutation(epoch), int(steps[place])
            while bad[order[(position + step) % self.number_of_examples]]:
                step += 1
            steps[place], out[place] = step, order[(position + step) % self.number_of_examples]
        return self.batch_size

    def _permutation(self, epoch: int) -> Indices:
        found = self._permutations.get(epoch)
        if found is None:
            if self._files is None:
                found = permutation(self.number_of_examples, self.seed, epoch)
            else:
                found = permutation_by_files(self._files, self._files_together, self.seed, epoch)
            if len(self._permutations) == EPOCHS_KEPT:
                del self._permutations[next(iter(self._permutations))]
            self._permutations[epoch] = found
        return found


class CheckOrder:
    """Every example once, in the order of the data set. A short last batch is padded with the last example.

    A bad example is left out, and the batch has one more padding example at its end. It is not replaced, because its
    substitute would count twice.

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

    def begin(self, task: int) -> None:
        """Do nothing: the order does not depend on the learners."""

    def indices(self, task: int, out: Indices, epochs: Epochs | None = None) -> int:
        start = task * self.batch_size
        if not 0 <= start < self.number_of_examples:
            raise IndexError(f"expected 0 ≤ task < {self.tasks}. Received: {task}")
        np.add(self._positions, start, out=out)
        np.minimum(out, self.number_of_examples - 1, out=out)
        if epochs is not None:
            epochs[...] = 0
        return min(self.batch_size, self.number_of_examples - start)

    def leave_out(self, bad: Mask, task: int, out: Indices, steps: Indices) -> int:
        start = task * self.batch_size
        good = start + np.flatnonzero(~bad[start : start + self.batch_size])
        out[: len(good)] = good
        out[len(good) :] = good[-1] if len(good) else np.argmin(bad)
        return len(good)


def _check_sizes(number_of_examples: int, batch_size: int) -> None:
    for name, value in (("number_of_examples", number_of_examples), ("batch_size", batch_size)):
        if value < 1:
            raise DataError(f"{name}: expected an integer ≥ 1. Received: {value}")
