"""Dropout. The mask is `crossbow.kernels.random.keep_mask`, drawn again in the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import CudaKernel, computed_in
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.random import threshold
from crossbow.kernels.requests import DropoutBackward, DropoutForward
from crossbow.types import Tensor

WORDS = 4
"""Elements that a block of random words is for."""
FEW = 2**18
"""Maximum number of elements that have a thread each, which draws its own words, so that the kernel can be part of a
series."""


@CUDA.kernel(DropoutForward)
def forward(request: DropoutForward) -> PreparedKernel:
    return _prepared(request, request.x)


@CUDA.kernel(DropoutBackward)
def backward(request: DropoutBackward) -> PreparedKernel:
    return _prepared(request, request.dy)


def _prepared(request: DropoutForward | DropoutBackward, x: Tensor) -> PreparedKernel:
    numbers: tuple[np.generic, ...] = (
        np.int64(x.elements),
        np.uint32(threshold(request.ratio)),
        computed_in(x.dtype).type(1 / (1 - request.ratio)),
        *random_key(request.seed, request.key),
    )
    kernel, threads = CudaKernel("dropout", "drop", x.dtype), -(-x.elements // WORDS)
    pointwise = x.elements <= FEW or not x.in_logical_order
    if pointwise:
        kernel, threads = CudaKernel("dropout", "drop_each", x.dtype), x.elements
        channels = 1 if x.in_logical_order else x.shape[1]
        numbers = (*numbers, np.int64(channels), np.int64(x.elements // (x.shape[0] * channels)))

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(threads, *(buffers[role] for role in request.roles), *numbers, pointwise=pointwise),)

    return request.prepared("cuda", bind)


def random_key(seed: int, key: int) -> tuple[np.uint32, np.uint32, np.uint32]:
    """What kernels need to draw the random numbers of operator `key`: key, low and high half of the seed."""
    return np.uint32(key), np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) & 0xFFFFFFFF)
