"""What a task gets from the host: its batch and its state as one record, which one copy brings to the GPU."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.compile.memory import aligned
from crossbow.kernels.cuda.api import api
from crossbow.kernels.interface import State
from crossbow.types import Array, Tensor, address

STATE = Tensor((State.SIZE,), np.dtype(np.int64))
_FIELDS = struct.Struct("=5q")
"""TASK, SLOT, EXAMPLES, TICK and TURN, as they lie in the state."""


@dataclass(frozen=True)
class Record:
    """Tensors that lie behind each other, each aligned as buffers in an arena are."""

    parts: Sequence[Tensor]

    @property
    def offsets(self) -> list[int]:
        """Of each part; and behind them the bytes of the record."""
        offsets = [0]
        for part in self.parts:
            offsets.append(offsets[-1] + aligned(part.nbytes))
        return offsets

    @property
    def nbytes(self) -> int:
        return self.offsets[-1]

    def arrays(self, memory: Array) -> list[Array]:
        """The parts of one record, in memory of any device."""
        return [part.view(memory[offset:]) for part, offset in zip(self.parts, self.offsets, strict=False)]


class Slots:
    """The slots of a ring of batches: records of images, labels, positions and state, in pinned memory.

    The loader's thread writes the batch, the thread that submits its task the state. A slot is given back when its
    task is done (`CudaLearner._result`), so nobody writes over a record that is still to be copied.
    """

    def __init__(self, slots: int, batch: Sequence[Tensor]) -> None:
        """batch: images, labels and positions of a slot."""
        self.record = record = Record((*batch, STATE))
        memory = api().pinned(slots * record.nbytes)
        rows = memory.reshape(slots, record.nbytes)
        self.batches: list[Array] = [
            rows[:, offset : offset + part.nbytes].view(part.dtype).reshape((slots, *part.shape))
            for part, offset in zip(batch, record.offsets, strict=False)
        ]
        """Images, labels and positions of all slots: (S, B, …)."""
        self.addresses = [address(memory) + slot * record.nbytes for slot in range(slots)]
        self._states = [slot * record.nbytes + record.offsets[-2] for slot in range(slots)]
        self._memory = memory.data  # writing here takes a third of the time of an assignment to an array

    def set_state(self, slot: int, task: int, examples: int, tick: int, turn: int) -> None:
        """Write what kernels read. On the GPU a batch lies in slot 0, whichever it comes from."""
        _FIELDS.pack_into(self._memory, self._states[slot], task, 0, examples, tick, turn)
