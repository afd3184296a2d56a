"""Memory of a learner's programs, on the host."""

from __future__ import annotations

from crossbow.compile import Memory
from crossbow.data.loader import Loader
from crossbow.host_memory import aligned_zeros
from crossbow.runtime.assembly import Assembly, Pipeline
from crossbow.runtime.memory import new_state
from crossbow.types import Array


class CpuLearnerMemory:
    """A learner's arena, shared by its programs, and the state of its task."""

    def __init__(self, assembly: Assembly) -> None:
        self._program = assembly.program
        self.state = new_state()
        self.arena = aligned_zeros(assembly.needs.arena)

    def of(self, pipeline: Pipeline, weights: Array, gradient: Array, statistics: tuple[Array, Array]) -> Memory:
        """The memory for a program and its batches. statistics: the vectors that it reads and those that it writes."""
        vectors = {"weights": weights, "gradient": gradient}
        vectors["statistics"], vectors["statistics_next"] = statistics
        named = {"state": self.state, **_batches(pipeline.loader)}
        return Memory(self.arena, self._program.model, vectors, named, self._program.statistics)


def _batches(loader: Loader) -> dict[str, Array]:
    """The slots of a loader, by the names that programs use."""
    return {"slots": loader.images, "slot_labels": loader.labels, "slot_positions": loader.positions}
