"""Ranks: processes, usually one per host, that train together.

`crossbow.cluster.rank`, `size` and `view` are this process's number, the number of ranks, and the live ranks. A process
that was not started by mpirun, srun or `crossbow launch` is rank 0 of 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crossbow.cluster.members import Rank, RankFailedError, View
from crossbow.cluster.process import join
from crossbow.cluster.ranks import Ranks

if TYPE_CHECKING:
    rank: int
    size: int
    view: View


def __getattr__(name: str) -> Any:
    """Join the other ranks when a script first reads one of these."""
    if name in ("rank", "size", "view"):
        return getattr(join(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Rank", "RankFailedError", "Ranks", "View", "join", "rank", "size", "view"]
