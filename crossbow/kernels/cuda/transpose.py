"""A tensor with its axes, or parts of them, in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crossbow.kernels.cuda.copy import Copy, moved
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.strides import moves_nothing, transposed_strides
from crossbow.types import Shape, Tensor


def forward(x: Tensor, y: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
    """input0 → output; one memory where nothing moves."""
    turned, from_x, to_y = transposed_strides(x, y, sizes, order)
    copy, same = moved(y.dtype, turned, from_x, to_y), moves_nothing(x, y, sizes, order)
    return _prepared("transpose_forward", copy, "input0", "output", same)


def backward(dy: Tensor, dx: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
    """output_gradient → input_gradient; one memory where nothing moves."""
    turned, of_dx, of_dy = transposed_strides(dx, dy, sizes, order)
    copy, same = moved(dx.dtype, turned, of_dy, of_dx), moves_nothing(dx, dy, sizes, order)
    return _prepared("transpose_backward", copy, "output_gradient", "input_gradient", same)


def _prepared(name: str, copy: Copy, read: str, write: str, same: bool) -> PreparedKernel:
    def bind(buffers: Buffers) -> Sequence[Call]:
        return (copy(buffers[read], buffers[write]),)

    kernel = PreparedKernel(f"{name} cuda", (read,), (write,), bind)
    return replace(kernel, in_place=(read, write), alias=(read, write)) if same else kernel
