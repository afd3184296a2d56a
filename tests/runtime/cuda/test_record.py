"""Batch and state of a task as one record: where its parts lie."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from crossbow.compile.memory import ALIGNMENT
from crossbow.kernels.interface import State
from crossbow.runtime.cuda.memory import STATE, SlotRecord, Slots
from crossbow.types import Tensor, address
from tests.kernels.cuda.fake import fake_cuda

IMAGES, LABELS = Tensor((3, 1, 5, 5), np.dtype(np.uint8)), Tensor((3,), np.dtype(np.int32))
POSITIONS = Tensor((3, 2), np.dtype(np.int64))
BATCH = (IMAGES, LABELS, POSITIONS)


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    with fake_cuda():
        yield


def test_every_part_is_aligned_and_apart() -> None:
    record = SlotRecord((*BATCH, STATE))
    assert record.offsets == [0, 128, 192, 256, 320]
    assert record.nbytes == 320
    memory = np.zeros(record.nbytes, np.uint8)
    arrays = record.arrays(memory)
    for number, array in enumerate(arrays, start=1):
        assert address(array) % ALIGNMENT == address(memory) % ALIGNMENT
        array.view(np.uint8)[...] = number
    assert [int((memory == number).sum()) for number in range(5)] == [320 - 75 - 12 - 48 - 64, 75, 12, 48, 64]


def test_a_record_is_what_its_slot_holds() -> None:
    slots, random = Slots(4, BATCH), np.random.default_rng(0)
    for array in slots.batches:
        array[...] = random.integers(0, 100, array.shape)
    for slot in range(4):
        slots.set_state(slot, task=100 + slot, examples=slot, tick=7, turn=9)
    start = slots.addresses[0]
    for slot, place in enumerate(slots.addresses):
        assert place % ALIGNMENT == 0
        memory = np.frombuffer(slots._memory, np.uint8)[place - start :][: slots.record.nbytes]
        *batch, state = slots.record.arrays(memory)
        for part, array, received in zip(BATCH, slots.batches, batch, strict=True):
            assert (received.shape, received.dtype) == (part.shape, part.dtype)
            assert array[slot].flags.c_contiguous
            np.testing.assert_array_equal(received, array[slot])
        expected = np.zeros(State.SIZE, np.int64)
        expected[[State.TASK, State.EXAMPLES, State.TICK, State.TURN]] = 100 + slot, slot, 7, 9
        np.testing.assert_array_equal(state, expected)
