"""Memory of a learner's programs, on a GPU.

The batch and the state of a task are one record, which is copied to the GPU at once.
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
from crossbow.dataflow.graph import other_measures
from crossbow.host_memory import Zeros
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.kernels.interface import State
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.cuda.stream import CudaStream, Event, LearnerStreams
from crossbow.runtime.replica import narrow_vectors
from crossbow.types import Array, Tensor, address

INPUTS = 2
"""Number of a learner's input buffers: the next batch is copied while the current one is in use."""
SMALL_RECORD = 128 << 10
"""Maximum number of bytes of a record that the compute stream copies. Such a copy takes a few microseconds, about as
long as the events that would order a copy on another stream. This is an estimate, not a measurement."""
TURNS = 64
"""Maximum number of a learner's pending tasks; others wait to be submitted."""

STATE = Tensor((State.SIZE,), np.dtype(np.int64))
_FIELDS = struct.Struct("=5q")
"""TASK, SLOT, EXAMPLES, TICK and TURN, in the order of the state."""


@dataclass(frozen=True)
class SlotRecord:
    """Consecutive tensors in memory, aligned as buffers in an arena."""

    parts: Sequence[Tensor]

    @property
    def offsets(self) -> list[int]:
        """Offset of each part, and the size of the record, in bytes."""
        offsets = [0]
        for part in self.parts:
            offsets.append(offsets[-1] + aligned(part.nbytes))
        return offsets

    @property
    def nbytes(self) -> int:
        return self.offsets[-1]

    def arrays(self, memory: Array) -> list[Array]:
        """The parts of a record in memory, on any device."""
        return [part.view(memory[offset:]) for part, offset in zip(self.parts, self.offsets, strict=False)]


class Slots:
    """The slots of a ring of batches: records of images, labels, positions and state, in pinned memory.

    The loader's thread writes the batch, and the thread that submits the task writes the state. A slot is released
    when its task is done (`CudaLearner._result`), so a record is not overwritten before it is copied.
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
        self._memory = memory.data  # a memoryview: assignments take a third of the time of an array's

    def set_state(self, slot: int, task: int, examples: int, tick: int, turn: int) -> None:
        """Write the state that kernels read. On the GPU, every batch is in slot 0."""
        _FIELDS.pack_into(self._memory, self._states[slot], task, 0, examples, tick, turn)


class Input:
    """An input buffer on the GPU: the record of the current task. Its GPU must be the current one at its creation."""

    def __init__(self, slots: Slots, device: int) -> None:
        """slots: the source of the records."""
        self._memory: Array = api().zeros(slots.record.nbytes)
        self._slots = slots
        self._copied, self._read = Event(device), Event(device)
        """The end of the last copy, and of the last task that used the record. A wait for an event that was never
        recorded returns at once."""

    @functools.cached_property
    def _address(self) -> int:
        return address(self._memory)

    @functools.cached_property
    def arrays(self) -> dict[str, Array]:
        """The state, and the batch as a single slot (1, B, …), by the names that programs use."""
        *batch, state = self._slots.record.arrays(self._memory)
        images, labels, positions = (array.reshape((1, *array.shape)) for array in batch)
        return {"state": state, "slots": images, "slot_labels": labels, "slot_positions": positions}

    def copy(self, streams: LearnerStreams, slot: int, task: int, examples: int, tick: int, turn: int) -> None:
        """Submit the copy of a slot's record, after the last use of the previous record. Work that is submitted to the
        compute stream from now on reads the new record."""
        self._slots.set_state(slot, task, examples, tick, turn)
        if self._memory.nbytes <= SMALL_RECORD:
            self._submit(slot, streams.compute)
            return
        streams.copies.wait_for(self._read)
        self._submit(slot, streams.copies)
        self._copied.record(streams.copies)
        streams.compute.wait_for(self._copied)

    def _submit(self, slot: int, stream: CudaStream) -> None:
        runtime = api().runtime
        nbytes, kind = self._memory.nbytes, runtime.memcpyHostToDevice
        runtime.memcpyAsync(self._address, self._slots.addresses[slot], nbytes, kind, stream.place.pointer)

    def read_until(self, event: Event) -> None:
        """Set the event that marks the end of the task that uses the record."""
        self._read = event


class Turns:
    """Memory of a learner's pending tasks: the loss, the metrics and the end event of each."""

    def __init__(self, device: int, metrics: int = 0) -> None:
        """metrics: number of metrics beside the accuracy."""
        self.results: list[Array] = [
            api().pinned(2 * 8 * TURNS).view(np.float64).reshape(TURNS, 2) for _ in range(0, 2 + metrics, 2)
        ]
        """Loss and accuracy of each turn, and in further arrays two other metrics each. Kernels write them
        (`kernels.cuda.task.store_results`)."""
        self.done = [Event(device) for _ in range(TURNS)]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for turn in range(TURNS):
            self._free.put(turn)

    def take(self) -> int:
        """Take a free turn. Blocks until there is one."""
        return self._free.get()

    def give_back(self, turn: int) -> None:
        """Return a turn. Any thread may call it."""
        self._free.put(turn)


class CudaLearnerMemory:
    """A learner's arena, shared by its programs, its input buffers, and the memory of its pending tasks. Its GPU must
    be the current one at its creation."""

    def __init__(
        self, assembly: Assembly, streams: LearnerStreams, slots: Mapping[Loader, Slots], zeros: Zeros
    ) -> None:
        """slots: the slots of batches, by loader. zeros: allocates the GPU's memory."""
        device, program, check = streams.compute.device, assembly.program, assembly.check
        self.arena = zeros(max(assembly.needs.arena, 1))
        self.turns = Turns(device, 0 if check is None else len(other_measures(check.program.graph)))
        self._narrow = narrow_vectors(program, assembly.arithmetic.library.mixed, zeros)
        self._inputs = {
            loader: tuple(Input(slots[loader], device) for _ in range(INPUTS)) for loader in assembly.loaders
        }

    @property
    def scaling(self) -> Array | None:
        """State of the loss scale; None without one."""
        return self._narrow.get("scaling")

    def inputs(self, loader: Loader) -> Sequence[Input]:
        """The input buffers for a loader's batches."""
        return self._inputs[loader]

    def vectors(self, weights: Array, gradient: Array, statistics: tuple[Array, Array]) -> dict[str, Array]:
        """The memory for a program, by the names that programs use. statistics: the vector to read, and the vector to
        write."""
        present, following = statistics
        named = {"weights": weights, "gradient": gradient, "statistics": present, "statistics_next": following}
        return {**self._narrow, **named}


def device_zeros(device: int) -> Zeros:
    """Return a function that allocates memory of a GPU, given by its CUDA number."""

    def zeros(nbytes: int) -> Array:
        with on(Stream(device, 0)):
            memory: Array = api().zeros(nbytes)
        return memory

    return zeros
