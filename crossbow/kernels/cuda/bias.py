"""A bias along the channels, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.channels import MOST_OF_A_BLOCK, MOST_THREADS
from crossbow.kernels.cuda.launch import BLOCK, CudaKernel, Launch
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import BiasBackward, BiasForward
from crossbow.kernels.strides import channels_of
from crossbow.types import Array, Tensor

CHANNELS_OF_A_BLOCK = 32
"""Number of channels that one block sums, if neighbours in memory belong to different channels."""
ADDED_BY_A_THREAD = 16
"""Minimum number of elements of a channel that a thread adds up before the channel is divided among blocks."""
ENOUGH_BLOCKS = 1024
"""Number of blocks that keeps a GPU busy."""


@CUDA.kernel(BiasForward)
def forward(request: BiasForward) -> PreparedKernel:
    add = AddBias(request.y.dtype, channels_of(request.y))

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (add(buffers["output"], buffers["bias"]),)

    return request.prepared("cuda", bind)


@CUDA.kernel(BiasBackward)
def backward(request: BiasBackward) -> PreparedKernel:
    sums = ChannelSums(request.dy)

    def bind(buffers: Buffers) -> Sequence[Call]:
        memory = buffers["workspace"] if sums.nbytes else None
        return sums.calls(buffers["output_gradient"], buffers["bias_gradient"], memory)

    return request.prepared("cuda", bind, workspace=sums.nbytes)


class AddBias:
    """The kernel that adds a bias (None: zeros), and optionally applies a ReLU. sizes: as `channels_of` returns
    them."""

    def __init__(self, dtype: np.dtype[np.generic], sizes: tuple[int, int, int], *, relu: bool = False) -> None:
        _, channels, inner = sizes
        self.elements = math.prod(sizes)
        self.kernel = CudaKernel("bias", "add_bias", dtype)
        self.numbers = (np.int64(self.elements), np.int64(channels), np.int64(inner), np.int32(relu))

    def __call__(self, y: Array, bias: Array | None) -> Launch:
        return self.kernel.each(self.elements, y, bias, *self.numbers, pointwise=True)


class ChannelSums:
    """The gradient of a bias: the sums over all axes except the channels, in an order that depends only on the
    shape."""

    def __init__(self, dy: Tensor) -> None:
        self.dtype = dy.dtype
        self.sizes = outer, channels, inner = channels_of(dy)
        self.width = min(CHANNELS_OF_A_BLOCK, 1 << (channels - 1).bit_length()) if inner == 1 else 1
        self.tiles = -(-channels // self.width)
        wanted = -(-outer * inner // (BLOCK // self.width * ADDED_BY_A_THREAD))
        self.parts, self.threads = max(1, min(wanted, ENOUGH_BLOCKS // self.tiles)), BLOCK
        if self.parts > 1 and outer * inner * self.width <= MOST_OF_A_BLOCK:
            self.parts, self.threads = 1, MOST_THREADS  # one kernel instead of two
        self.nbytes = 8 * self.parts * channels if self.parts > 1 else 0
        """Bytes of memory for sums of parts, in double precision."""

    def calls(self, dy: Array, sums: Array, partial: Array | None) -> list[Call]:
        """The calls that add up dy."""
        sizes, parts = [np.int64(size) for size in self.sizes], np.int64(self.parts)
        adding = CudaKernel("bias", "sum_channels", self.dtype)
        arguments = dy, sums, partial, *sizes, parts, np.int64(self.width)
        blocks, shared = self.tiles * self.parts, 8 * self.threads
        calls: list[Call] = [adding.blocks(blocks, *arguments, threads=self.threads, shared=shared)]
        if self.parts > 1:
            ending, channels = CudaKernel("bias", "add_parts", self.dtype), self.sizes[1]
            calls.append(ending.each(channels, partial, sums, np.int64(channels), parts))
        return calls
