"""Dropout. The mask is `crossbow.kernels.random.keep_mask`, drawn again in the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import CudaKernel, computed_in
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.random import halves, threshold
from crossbow.kernels.requests import DropoutBackward, DropoutForward
from crossbow.types import Tensor


@CUDA.kernel(DropoutForward)
def forward(request: DropoutForward) -> PreparedKernel:
    return _prepared(request, request.x)


@CUDA.kernel(DropoutBackward)
def backward(request: DropoutBackward) -> PreparedKernel:
    return _prepared(request, request.dy)


def _prepared(request: DropoutForward | DropoutBackward, x: Tensor) -> PreparedKernel:
    channels = 1 if x.in_logical_order else x.shape[1]
    kernel, numbers = (
        CudaKernel("dropout", "drop", x.dtype),
        (
            np.int64(x.elements),
            np.uint32(threshold(request.ratio)),
            computed_in(x.dtype).type(1 / (1 - request.ratio)),
            *random_key(request.seed, request.key),
            np.int64(channels),
            np.int64(x.elements // (x.shape[0] * channels)),
        ),
    )

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(x.elements, *(buffers[role] for role in request.roles), *numbers, pointwise=True),)

    return request.prepared("cuda", bind)


def random_key(seed: int, key: int) -> tuple[np.uint32, np.uint32, np.uint32]:
    """The arguments with which kernels draw the random numbers of operator `key`: the key, and the low and high half of
    the seed."""
    low, high = halves(seed)
    return np.uint32(key), np.uint32(low), np.uint32(high)
