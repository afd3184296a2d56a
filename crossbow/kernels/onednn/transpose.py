"""A tensor with its axes, or parts of them, in another order: a reorder between two kinds of strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn.element_wise import combination
from crossbow.kernels.onednn.primitive import Steps
from crossbow.kernels.strides import moves_nothing, transposed_strides
from crossbow.types import Shape, Tensor


def forward(x: Tensor, y: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
    """input0 → output."""
    roles = ("input0", "output")
    if moves_nothing(x, y, sizes, order):
        return _nothing("transpose_forward", *roles)
    turned, from_x, to_y = transposed_strides(x, y, sizes, order)
    return _moved("transpose_forward", turned, from_x, to_y, *roles)


def backward(dy: Tensor, dx: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
    """output_gradient → input_gradient."""
    roles = ("output_gradient", "input_gradient")
    if moves_nothing(dx, dy, sizes, order):
        return _nothing("transpose_backward", *roles)
    turned, of_dx, of_dy = transposed_strides(dx, dy, sizes, order)
    return _moved("transpose_backward", turned, of_dy, of_dx, *roles)


def _nothing(name: str, read: str, write: str) -> PreparedKernel:
    return replace(combination(name, (read,), write, (1.0,)), alias=(read, write))


def _moved(name: str, sizes: Shape, from_: Shape, to: Shape, read: str, write: str) -> PreparedKernel:
    steps = Steps(name)
    steps.reorder(strided(sizes, from_), read, strided(sizes, to), write)
    return steps.prepared((read,), (write,))


def strided(sizes: Shape, strides: Sequence[int]) -> dnnl.Handle:
    """Numbers that lie so far apart."""
    return dnnl.dnnl_memory_desc_create_with_strides(sizes, dnnl.F32, strides)
