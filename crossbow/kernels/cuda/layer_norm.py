"""Layer normalisation and its gradients. A *line* is a group of numbers that are normalised together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.four import joined, structure
from crossbow.kernels.cuda.launch import BLOCK, MOST_BLOCKS, Argument, CudaKernel, Launch
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import LayerNormBackward, LayerNormForward
from crossbow.kernels.strides import strides
from crossbow.types import Tensor

MOST_PARTS = 64
"""Maximum number of parts of the lines whose gradients of variables are added up separately."""


class _Lines:
    """The lines of a tensor, with a block for each."""

    def __init__(self, request: LayerNormForward | LayerNormBackward) -> None:
        x, axis, self.length = request.x, request.axis, math.prod(request.weights.shape)
        self.count, self.dtype = x.elements // self.length, x.dtype
        own = range(axis, axis + len(request.weights.shape))
        self._threads = min(BLOCK, 1 << max(self.length - 1, 1).bit_length() - 1)
        self.numbers: tuple[Argument, ...] = (
            _axes(x, [d for d in range(len(x.shape)) if d not in own]),
            _axes(x, own),
            np.int64(self.count),
        )
        self.epsilon = np.float64(request.epsilon)

    def each(self, name: str, *arguments: Argument) -> Launch:
        """The call of a kernel with a block for each line."""
        kernel, shared = CudaKernel("layer_norm", name, self.dtype), self._threads * 8
        blocks = min(self.count, MOST_BLOCKS)
        return kernel.blocks(blocks, *arguments, *self.numbers, self.epsilon, threads=self._threads, shared=shared)


def _axes(x: Tensor, axes: Sequence[int]) -> Argument:
    return structure(joined(tuple(x.shape[axis] for axis in axes), [strides(x)[axis] for axis in axes]))


@CUDA.kernel(LayerNormForward)
def forward(request: LayerNormForward) -> PreparedKernel:
    lines = _Lines(request)

    def bind(buffers: Buffers) -> Sequence[Call]:
        bias = None if request.bias is None else buffers["bias"]
        return (lines.each("layer_norm_forward", buffers["input0"], buffers["weights"], bias, buffers["output"]),)

    return request.prepared("cuda", bind)


@CUDA.kernel(LayerNormBackward)
def backward(request: LayerNormBackward) -> PreparedKernel:
    lines = _Lines(request)
    parts = min(lines.count, MOST_PARTS)
    size, dtype = 8 * 2 * lines.count, request.x.dtype
    products, totals = (CudaKernel("layer_norm", f"layer_norm_{name}", dtype) for name in ("products", "totals"))

    def bind(buffers: Buffers) -> Sequence[Call]:
        x, dy, weights, workspace = (buffers[role] for role in ("input0", "output_gradient", "weights", "workspace"))
        statistics, sums = workspace[:size], workspace[size:]
        gradients = buffers["weights_gradient"], None if request.bias is None else buffers["bias_gradient"]
        divided = np.int64(lines.length), np.int64(parts)
        calls: list[Call] = [
            lines.each("layer_norm_statistics", x, statistics),
            products.each(lines.length * parts, x, dy, statistics, sums, *lines.numbers, *divided),
            totals.each(lines.length, sums, *gradients, *divided),
        ]
        if request.dx is not None:  # last: it may share memory with the output gradient
            calls.append(lines.each("layer_norm_backward", x, dy, weights, statistics, buffers["input_gradient"]))
        return calls

    return request.prepared("cuda", bind, workspace=size + 8 * 2 * parts * lines.length)
