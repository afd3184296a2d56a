"""Concatenation of tensors along an axis: each tensor is a part of the result."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.kernels.cuda.copy import Copy, moved
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import ConcatBackward, ConcatForward
from crossbow.kernels.strides import strides


@CUDA.kernel(ConcatForward)
def forward(request: ConcatForward) -> PreparedKernel:
    xs, y, axis = request.xs, request.y, request.axis
    axis %= len(y.shape)
    copies: list[Copy] = []
    start = 0
    for x in xs:
        copies.append(moved(y.dtype, x.shape, strides(x), strides(y), to_start=start * strides(y)[axis]))
        start += x.shape[axis]

    def bind(buffers: Buffers) -> Sequence[Call]:
        return [copy(buffers[role], buffers["output"]) for role, copy in zip(request.reads, copies, strict=True)]

    return request.prepared("cuda", bind)


@CUDA.kernel(ConcatBackward)
def backward(request: ConcatBackward) -> PreparedKernel:
    dy, dx, axis, start = request.dy, request.dx, request.axis, request.start
    axis %= len(dy.shape)
    copy = moved(dx.dtype, dx.shape, strides(dy), strides(dx), from_start=start * strides(dy)[axis])

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (copy(buffers["output_gradient"], buffers["input_gradient"]),)

    return request.prepared("cuda", bind)
