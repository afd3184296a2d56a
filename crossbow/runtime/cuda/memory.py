"""What a learner's programs are bound to, in a GPU's memory.

A task gets its batch and its state from the host as one record, which one copy brings to the GPU.
"""

from __future__ import annotations

import functools
import queue
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.compile.memory import aligned
from crossbow.data.loader import Loader
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.kernels.interface import State
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.cuda.stream import CudaStream, Event, LearnerStreams
from crossbow.runtime.replica import Zeros, narrow_vectors
from crossbow.types import Array, Tensor, address

INPUTS = 2
"""Input buffers of a learner: the next batch is copied while this one is computed with."""
TURNS = 64
"""Tasks of a learner that may be under way at a time; more wait to be submitted."""

STATE = Tensor((State.SIZE,), np.dtype(np.int64))
_FIELDS = struct.Struct("=5q")
"""TASK, SLOT, EXAMPLES, TICK and TURN, as they lie in the state."""


@dataclass(frozen=True)
class SlotRecord:
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
    task is done (`CudaLearner._result`), so nothing is written over a record that is still to be copied.
    """

    def __init__(self, slots: int, batch: Sequence[Tensor]) -> None:
        """batch: images, labels and positions of a slot."""
        self.record = record = SlotRecord((*batch, STATE))
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


class Input:
    """Where a task's record lies on the GPU while it is computed with. Made with that GPU as the current one."""

    def __init__(self, slots: Slots, device: int) -> None:
        """slots: where the records come from."""
        self._memory: Array = api().zeros(slots.record.nbytes)
        self._slots = slots
        self._copied, self._read = Event(device), Event(device)
        """The end of the last copy, and of the last task that computed with it. An event that was never recorded is
        waited for by nobody."""

    @functools.cached_property
    def _address(self) -> int:
        return address(self._memory)

    @functools.cached_property
    def arrays(self) -> dict[str, Array]:
        """By the names that programs use: the state, and the batch as the only slot, (1, B, …)."""
        *batch, state = self._slots.record.arrays(self._memory)
        images, labels, positions = (array.reshape((1, *array.shape)) for array in batch)
        return {"state": state, "slots": images, "slot_labels": labels, "slot_positions": positions}

    def copy(self, copies: CudaStream, slot: int, task: int, examples: int, tick: int, turn: int) -> None:
        """Submit the copy of a slot's record to a stream, once the last one was read."""
        runtime, slots = api().runtime, self._slots
        slots.set_state(slot, task, examples, tick, turn)
        copies.wait_for(self._read)
        nbytes, kind = self._memory.nbytes, runtime.memcpyHostToDevice
        runtime.memcpyAsync(self._address, slots.addresses[slot], nbytes, kind, copies.place.pointer)
        self._copied.record(copies)

    def wait_for_copy(self, stream: CudaStream) -> None:
        """Let what is submitted to the stream from now on see the record."""
        stream.wait_for(self._copied)

    def read_until(self, event: Event) -> None:
        """The task that computes with the record ends with this event."""
        self._read = event


class Turns:
    """The places of a learner's tasks under way: where each leaves loss and accuracy, and the event of its end."""

    def __init__(self, device: int) -> None:
        self.results: Array = api().pinned(2 * 8 * TURNS).view(np.float64).reshape(TURNS, 2)
        """Loss and accuracy, by turn. Kernels write them (`kernels.cuda.engine.store_results`)."""
        self.done = [Event(device) for _ in range(TURNS)]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for turn in range(TURNS):
            self._free.put(turn)

    def take(self) -> int:
        """A turn that is free; blocks until there is one."""
        return self._free.get()

    def give_back(self, turn: int) -> None:
        """Any thread."""
        self._free.put(turn)


class CudaLearnerMemory:
    """A learner's arena, which its programs share, its inputs, and the places of its tasks. Made with its GPU as the
    current one."""

    def __init__(
        self, assembly: Assembly, streams: LearnerStreams, slots: Mapping[Loader, Slots], zeros: Zeros
    ) -> None:
        """slots: the rings of batches, by loader. zeros: gives the GPU's memory."""
        device, program = streams.compute.device, assembly.program
        self.arena = zeros(max(assembly.needs.arena, 1))
        self.turns = Turns(device)
        self._narrow = narrow_vectors(program, assembly.arithmetic.library.mixed, zeros)
        self._inputs = {
            loader: tuple(Input(slots[loader], device) for _ in range(INPUTS)) for loader in assembly.loaders
        }

    def inputs(self, loader: Loader) -> Sequence[Input]:
        """The input buffers for a loader's batches, which take turns."""
        return self._inputs[loader]

    def vectors(self, weights: Array, gradient: Array, statistics: tuple[Array, Array]) -> dict[str, Array]:
        """By the names that programs use. statistics: those that are read, and those that are written."""
        present, following = statistics
        named = {"weights": weights, "gradient": gradient, "statistics": present, "statistics_next": following}
        return {**self._narrow, **named}


def device_zeros(device: int) -> Zeros:
    """Gives the memory of a GPU, by its number in CUDA."""

    def zeros(nbytes: int) -> Array:
        with on(Stream(device, 0)):
            memory: Array = api().zeros(nbytes)
        return memory

    return zeros
