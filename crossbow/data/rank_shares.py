"""Parts of the training examples that ranks keep to themselves."""

from __future__ import annotations

import copy

import numpy as np

from crossbow.cluster.placement import Placement
from crossbow.cluster.process import join
from crossbow.cluster.ranks import Ranks
from crossbow.conf import is_number, shown
from crossbow.data.dataset import Dataset
from crossbow.data.examples import Epochs, Indices
from crossbow.data.fingerprint import fingerprint
from crossbow.data.order import Mask, TrainingOrder
from crossbow.data.shards import RankShare, Sharding, numbers_of_rank
from crossbow.types import ConfigurationError


def share_of_rank(data: Dataset, sharding: Sharding, ranks: Ranks | None = None) -> Dataset:
    """The data set whose training examples are this rank's part. Examples in memory are copied, so that the whole data
    set can be freed. The check examples stay the same, because tests are divided among the ranks.

    ranks: by default the ranks of this run. Raises ConfigurationError unless there is a fraction for each rank, and the
    fractions adjoin from 0 to 1; DataError if a part is empty.

    >>> data = Dataset((np.arange(10, dtype=np.float32)[:, None], np.arange(10)))
    >>> share_of_rank(data, "stride").share.sizes
    (10,)
    """
    if not isinstance(data, Dataset):
        raise ConfigurationError(f"data sharding: expected a Dataset. Received: {shown(data)}")
    ranks, count = ranks or join(), len(data.train)
    stride = isinstance(sharding, str) and sharding == "stride"
    if not stride and not (isinstance(sharding, list | tuple) and all(map(_is_pair, sharding))):
        raise ConfigurationError(
            f"data sharding: expected 'stride', or begin and end for each rank. Received: {shown(sharding)}"
        )
    if sharding != "stride" and len(sharding) != ranks.size:
        raise ConfigurationError(
            f"data sharding: expected begin and end for each of {ranks.size} ranks. Received: {len(sharding)}"
        )
    parts = [numbers_of_rank(count, sharding, rank, ranks.size) for rank in range(ranks.size)]
    counts = np.bincount(np.concatenate(parts), minlength=count)
    if (counts != 1).any():
        example = int(np.argmax(counts != 1))
        raise ConfigurationError(
            f"data sharding: expected parts of ranks that adjoin, from 0 to 1. Received: {shown(sharding)}, where "
            f"example {example} is in {counts[example] or 'none'} of them"
        )
    made = copy.copy(data)
    made.train = data.train.part(parts[ranks.rank])
    made.share = RankShare(count, tuple(map(len, parts)), sharding, fingerprint(data)["training_digest"])
    return made


def _is_pair(part: object) -> bool:
    """Whether this is the pair (begin, end) of a part."""
    return isinstance(part, list | tuple) and len(part) == 2 and all(map(is_number, part))


class ShareOrder(TrainingOrder):
    """The order of a rank's part of the examples. Each rank shuffles its part separately, in epochs of its own: the
    m-th of the rank's tasks takes positions [m·B, (m+1)·B). Epochs of the run are counted in examples of all ranks.

    >>> order = ShareOrder(RankShare(8, (4, 4), "stride", ""), 2, 0, Placement(learners=2, first=1, own=1))
    >>> out = np.empty(2, np.intp)
    >>> order.tasks_per_epoch, [order.indices(task, out) and sorted(out.tolist()) for task in (1, 3)]
    (4.0, [[2, 3], [0, 1]])
    """

    def __init__(
        self,
        share: RankShare,
        batch_size: int,
        seed: int,
        placement: Placement,
        files: Indices | None = None,
        files_together: int = 1,
    ) -> None:
        """Raises ConfigurationError unless all ranks have as many learners as this one."""
        ranks = len(share.sizes)
        if placement.own * ranks != placement.learners:
            raise ConfigurationError(
                f"data sharding: expected as many learners on each of {ranks} ranks. Received: {placement.own} of "
                f"{placement.learners} on one"
            )
        super().__init__(share.whole, batch_size, seed)
        self._placement, self._ranks, self._first = placement, ranks, 0
        own = share.sizes[placement.first // placement.own]
        self._part = TrainingOrder(own, batch_size, seed, files, files_together)

    def begin(self, task: int) -> None:
        """Continue in this rank's part after all tasks before this one, which the ranks may have done with another
        number of learners. Without a barrier, a stretch may end within a turn of the ranks; one of them then repeats or
        misses a batch."""
        self._first = task

    def indices(self, task: int, out: Indices, epochs: Epochs | None = None) -> int:
        return self._part.indices(self._own(task), out, epochs)

    def leave_out(self, bad: Mask, task: int, out: Indices, steps: Indices) -> int:
        return self._part.leave_out(bad, self._own(task), out, steps)

    def _own(self, task: int) -> int:
        """The number of a task among the tasks of this rank."""
        return self._first // self._ranks + self._placement.own_of(task - self._first)
