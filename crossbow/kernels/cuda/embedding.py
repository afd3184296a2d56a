"""Rows of a table selected by indices, and the gradient of the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, CudaKernel
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import EmbeddingBackward, EmbeddingForward


@CUDA.kernel(EmbeddingForward)
def forward(request: EmbeddingForward) -> PreparedKernel:
    kernel, length, (rows, columns) = _kernel(request, "forward"), request.x.shape[1], request.weights.shape

    def bind(buffers: Buffers) -> Sequence[Call]:
        arrays = (buffers[role] for role in ("input0", "state", "weights", "output"))
        sizes = (np.int64(size) for size in (request.y.elements, length, rows, columns))
        return (kernel.each(request.y.elements, *arrays, *sizes),)

    return request.prepared("cuda", bind)


@CUDA.kernel(EmbeddingBackward)
def backward(request: EmbeddingBackward) -> PreparedKernel:
    zero, kernel = _kernel(request, "zero"), _kernel(request, "backward")
    length, (rows, columns) = request.x.shape[1], request.weights.shape
    threads = min(max(32, 1 << (columns - 1).bit_length()), BLOCK)

    def bind(buffers: Buffers) -> Sequence[Call]:
        arrays = [buffers[role] for role in ("input0", "state", "output_gradient", "weights_gradient")]
        sizes = (np.int64(size) for size in (length, rows, columns))
        return (
            zero.each(rows * columns, arrays[-1], np.int64(rows * columns)),
            kernel.blocks(max(1, request.x.elements), *arrays, *sizes, threads=threads, shared=threads * 4),
        )

    return request.prepared("cuda", bind)


def _kernel(request: EmbeddingForward | EmbeddingBackward, name: str) -> CudaKernel:
    return CudaKernel("embedding", f"embedding_{name}", request.x.dtype)
