"""Tensors one behind the other along an axis: each a part of the whole."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.kernels.cuda.copy import Copy, moved
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.strides import strides
from crossbow.types import Tensor


def forward(xs: Sequence[Tensor], y: Tensor, axis: int) -> PreparedKernel:
    """input0, input1, … → output."""
    axis %= len(y.shape)
    reads = tuple(f"input{number}" for number in range(len(xs)))
    copies: list[Copy] = []
    start = 0
    for x in xs:
        copies.append(moved(y.dtype, x.shape, strides(x), strides(y), to_start=start * strides(y)[axis]))
        start += x.shape[axis]

    def bind(buffers: Buffers) -> Sequence[Call]:
        return [copy(buffers[role], buffers["output"]) for role, copy in zip(reads, copies, strict=True)]

    return PreparedKernel("concat_forward cuda", reads, ("output",), bind)


def backward(dy: Tensor, dx: Tensor, axis: int, start: int) -> PreparedKernel:
    """output_gradient → input_gradient."""
    axis %= len(dy.shape)
    copy = moved(dx.dtype, dx.shape, strides(dy), strides(dx), from_start=start * strides(dy)[axis])

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (copy(buffers["output_gradient"], buffers["input_gradient"]),)

    return PreparedKernel("concat_backward cuda", ("output_gradient",), ("input_gradient",), bind)
