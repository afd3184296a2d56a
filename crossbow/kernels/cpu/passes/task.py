"""Copies a batch from its slot into the learner's memory, converted and reordered."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import (
    SLOT,
    NativeFunction,
    float32_at,
    float64_at,
    inlined,
    int32_at,
    int64_at,
    native_pass,
    prepared_pass,
    uint8_at,
)
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LoadBatch
from crossbow.types import Layout

WORD = 4
"""Size of a label in bytes, for all types."""


def _takes(request: LoadBatch) -> bool:
    """Whether the passes support these types."""
    same_labels = request.slot_labels.dtype == request.labels.dtype and request.labels.dtype.itemsize == WORD
    return request.slots.dtype in _LOADERS and request.x.dtype == np.float32 and same_labels


@PASSES.kernel(LoadBatch, _takes)
def load_batch(request: LoadBatch) -> PreparedKernel:
    slots, x, labels, scale = request.slots, request.x, request.labels, request.scale
    images, channels, positions = 1, 1, x.elements
    if x.layout is Layout.CHANNELS_LAST and x.shape[1] > 1:
        images, channels, positions = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    places: dict[str, Any] = {role: role for role in request.roles}
    return prepared_pass(
        request,
        _LOADERS[slots.dtype],
        **places,
        images=images,
        channels=channels,
        positions=positions,
        count=labels.elements,
        scale=float(np.float32(scale)),
    )


LOAD = Arguments(
    slots=Address,
    slot_labels=Address,
    state=Address,
    input=Address,
    labels=Address,
    images=int,
    channels=int,
    positions=int,
    count=int,
    scale=float,
)
"""A slot has `images` images of (channels, positions) and `count` labels. The input is channels-last."""


@inlined
def _copy_labels(source: int, target: int, count: int) -> None:
    """Copy labels of any type of 4 bytes."""
    slot_labels, labels = int32_at(source), int32_at(target)
    for index in range(count):
        labels[index] = slot_labels[index]


@inlined
def _load(block: Any, slots: Any) -> None:
    """Convert the images of the task's slot, of any type, to scaled, channels-last images, and copy its labels."""
    slot, target, scale = int64_at(block.state)[SLOT], float32_at(block.input), np.float32(block.scale)
    images, channels, positions = block.images, block.channels, block.positions
    first = slot * images * channels * positions
    for n in range(images):
        for c in range(channels):
            start = first + (n * channels + c) * positions
            place = n * channels * positions + c
            for index in range(positions):
                target[place + index * channels] = np.float32(slots[start + index]) * scale
    _copy_labels(block.slot_labels + WORD * slot * block.count, block.labels, block.count)


@native_pass(LOAD)
def load_bytes(block: Any) -> int:
    _load(block, uint8_at(block.slots))
    return 0


@native_pass(LOAD)
def load_floats(block: Any) -> int:
    _load(block, float32_at(block.slots))
    return 0


@native_pass(LOAD)
def load_doubles(block: Any) -> int:
    _load(block, float64_at(block.slots))
    return 0


_LOADERS: dict[np.dtype[np.generic], NativeFunction] = {
    np.dtype(np.uint8): load_bytes,
    np.dtype(np.float32): load_floats,
    np.dtype(np.float64): load_doubles,
}
"""Passes by the slots' type, in the machine's byte order."""
