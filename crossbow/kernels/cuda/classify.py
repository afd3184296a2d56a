"""The index of the largest value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.four import four, four_around, threads_per_line
from crossbow.kernels.cuda.launch import MOST_BLOCKS, CudaKernel
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import LargestIndex


@CUDA.kernel(LargestIndex)
def forward(request: LargestIndex) -> PreparedKernel:
    x, y, axis, ties = request.x, request.y, request.axis, request.ties
    threads, lines = threads_per_line(x, axis), y.elements
    kernel = CudaKernel("classify", "classify" if threads == 1 else "classify_rows", x.dtype)
    source, place = four_around(x, axis)
    constants = (source, four(y), place, np.int64(lines), np.int32(ties == "last"))

    def bind(buffers: Buffers) -> Sequence[Call]:
        arguments = (buffers["input0"], buffers["output"], *constants)
        if threads == 1:
            return (kernel.each(lines, *arguments),)
        shared = threads * (np.dtype(np.int64).itemsize + x.dtype.itemsize)
        return (kernel.blocks(min(lines, MOST_BLOCKS), *arguments, threads=threads, shared=shared),)

    return request.prepared("cuda", bind)
