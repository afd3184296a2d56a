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
from crossbow.kernels.interface import PreparedKernel
from crossbow.types import Layout, Tensor

WORD = 4
"""Bytes of a label, of any type."""


def accepts(slots: Tensor, x: Tensor, slot_labels: Tensor, labels: Tensor) -> bool:
    """Whether the pass knows these types."""
    same_labels = slot_labels.dtype == labels.dtype and labels.dtype.itemsize == WORD
    return slots.dtype in (np.dtype(np.uint8), np.dtype(np.float32)) and x.dtype == np.float32 and same_labels


def load_batch(slots: Tensor, x: Tensor, labels: Tensor, scale: float) -> PreparedKernel:
    """slots, slot_labels, state → input, labels: slot state[SLOT], multiplied by `scale`."""
    function: NativeFunction = load_bytes if slots.dtype == np.uint8 else load_floats
    images, channels, positions = 1, 1, x.elements
    if x.layout is Layout.CHANNELS_LAST and x.shape[1] > 1:
        images, channels, positions = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    reads = ("slots", "slot_labels", "state")
    numbers = (images, channels, positions, labels.elements, float(np.float32(scale)))
    return prepared_pass("load_batch", function, reads, ("input", "labels"), *numbers)


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
