"""Dropout. The mask is `crossbow.kernels.random.keep_mask`, drawn again in the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import Kernel, computed_in
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.random import threshold
from crossbow.types import Tensor

WORDS = 4
"""Elements that a block of random words is for."""


def forward(x: Tensor, y: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
    """input0, state → output."""
    return _prepared("dropout_forward", "input0", "output", x, ratio, seed, key)


def backward(dy: Tensor, dx: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
    """output_gradient, state → input_gradient."""
    return _prepared("dropout_backward", "output_gradient", "input_gradient", dy, ratio, seed, key)


def _prepared(name: str, read: str, write: str, x: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
    numbers: tuple[np.generic, ...] = (
        np.int64(x.elements),
        np.uint32(threshold(ratio)),
        computed_in(x.dtype).type(1 / (1 - ratio)),
        *random_key(seed, key),
    )
    kernel, threads = Kernel("dropout", "drop", x.dtype), -(-x.elements // WORDS)
    if not x.in_logical_order:
        _, channels, height, width = x.shape
        kernel, threads = Kernel("dropout", "drop_channels_last", x.dtype), x.elements
        numbers = (*numbers, np.int64(channels), np.int64(height * width))

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(threads, buffers[read], buffers["state"], buffers[write], *numbers),)

    return PreparedKernel(f"{name} cuda", (read, "state"), (write,), bind, in_place=(read, write))


def random_key(seed: int, key: int) -> tuple[np.uint32, np.uint32, np.uint32]:
    """What kernels need to draw the random numbers of operator `key`: key, low and high half of the seed."""
    return np.uint32(key), np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) & 0xFFFFFFFF)
