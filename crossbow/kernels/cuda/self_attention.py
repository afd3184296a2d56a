"""Multi-head attention of a sequence to itself, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, MOST_BLOCKS, CudaKernel, Launch
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import SelfAttentionBackward, SelfAttentionForward
from crossbow.kernels.requests.products import probabilities_of
from crossbow.types import Array


class _Rows:
    """The rows of the probabilities, one for each query of each head, with a block each."""

    def __init__(self, request: SelfAttentionForward | SelfAttentionBackward) -> None:
        (examples, length, width), self.dtype = request.x.shape, request.x.dtype
        self.count, longest = examples * request.heads * length, max(length, width // (3 * request.heads), 1)
        self._threads = min(BLOCK, 1 << (longest - 1).bit_length())
        self._numbers = (np.int64(self.count), np.int64(request.heads), np.int64(length), np.int64(width // 3))
        self._causal = np.int32(request.causal)

    def each(self, name: str, *arguments: Array) -> Launch:
        kernel, blocks = CudaKernel("self_attention", f"attention_{name}", self.dtype), min(self.count, MOST_BLOCKS)
        numbers = (*self._numbers, self._causal)
        return kernel.blocks(max(1, blocks), *arguments, *numbers, threads=self._threads, shared=self._threads * 8)


@CUDA.kernel(SelfAttentionForward)
def forward(request: SelfAttentionForward) -> PreparedKernel:
    rows, size, keeps = _Rows(request), probabilities_of(request.x, request.heads), "kept" in request.writes

    def bind(buffers: Buffers) -> Sequence[Call]:
        p = buffers["kept" if keeps else "workspace"]
        return (rows.each("forward", buffers["input0"], p, buffers["output"]),)

    return request.prepared("cuda", bind, workspace=0 if keeps else size, kept=size if keeps else 0)


@CUDA.kernel(SelfAttentionBackward)
def backward(request: SelfAttentionBackward) -> PreparedKernel:
    rows, size = _Rows(request), probabilities_of(request.x, request.heads)

    def bind(buffers: Buffers) -> Sequence[Call]:
        x, dy, p, ds = (buffers[role] for role in ("input0", "output_gradient", "kept", "workspace"))
        dx = buffers["input_gradient"]
        return (rows.each("scores_gradient", x, dy, p, ds, dx), rows.each("keys_gradient", x, dy, p, ds, dx))

    return request.prepared("cuda", bind, workspace=size)
