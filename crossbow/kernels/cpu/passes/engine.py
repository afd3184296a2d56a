"""The engine's own kernel: a batch from its slot into the learner's memory, converted and reordered."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.compiled import (
    SLOT,
    NativeFunction,
    float32_at,
    float64_at,
    int32_at,
    int64_at,
    native,
    prepared_pass,
    uint8_at,
)
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LoadBatch
from crossbow.types import Layout

WORD = 4
"""Bytes of a label, of any type."""


def _takes(request: LoadBatch) -> bool:
    """Whether the passes know these types."""
    same_labels = request.slot_labels.dtype == request.labels.dtype and request.labels.dtype.itemsize == WORD
    known = request.slots.dtype in (np.dtype(np.uint8), np.dtype(np.float32))
    return known and request.x.dtype == np.float32 and same_labels


@PASSES.kernel(LoadBatch, _takes)
def load_batch(request: LoadBatch) -> PreparedKernel:
    slots, x, labels, scale = request.slots, request.x, request.labels, request.scale
    function: NativeFunction = load_bytes if slots.dtype == np.uint8 else load_floats
    images, channels, positions = 1, 1, x.elements
    if x.layout is Layout.CHANNELS_LAST and x.shape[1] > 1:
        images, channels, positions = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    numbers = (images, channels, positions, labels.elements, float(np.float32(scale)))
    return prepared_pass(request, function, *numbers)


# Block of both: slots, slot labels, state, input, labels, images, channels, positions, number of labels, scale.


@native
def load_bytes(arguments: int, _1: int, _2: int, _3: int) -> int:
    block = int64_at(arguments)
    slot = int64_at(block[2])[SLOT]
    images, channels, positions, count = block[5], block[6], block[7], block[8]
    scale, target = np.float32(float64_at(arguments)[9]), float32_at(block[3])
    source = uint8_at(block[0] + slot * images * channels * positions)
    for n in range(images):
        for c in range(channels):
            start = (n * channels + c) * positions
            place = n * channels * positions + c
            for index in range(positions):
                target[place + index * channels] = np.float32(source[start + index]) * scale
    labels, slot_labels = int32_at(block[4]), int32_at(block[1] + 4 * slot * count)
    for index in range(count):
        labels[index] = slot_labels[index]
    return 0


@native
def load_floats(arguments: int, _1: int, _2: int, _3: int) -> int:
    block = int64_at(arguments)
    slot = int64_at(block[2])[SLOT]
    images, channels, positions, count = block[5], block[6], block[7], block[8]
    scale, target = np.float32(float64_at(arguments)[9]), float32_at(block[3])
    source = float32_at(block[0] + 4 * slot * images * channels * positions)
    for n in range(images):
        for c in range(channels):
            start = (n * channels + c) * positions
            place = n * channels * positions + c
            for index in range(positions):
                target[place + index * channels] = source[start + index] * scale
    labels, slot_labels = int32_at(block[4]), int32_at(block[1] + 4 * slot * count)
    for index in range(count):
        labels[index] = slot_labels[index]
    return 0
