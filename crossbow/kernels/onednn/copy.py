"""The elements of a tensor in another one, in logical order: a reorder, or nothing where they lie in that order."""

from __future__ import annotations

from dataclasses import replace

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn.element_wise import combination
from crossbow.kernels.onednn.memory import activation, plain
from crossbow.kernels.onednn.primitive import Steps
from crossbow.types import Tensor


def accepts(x: Tensor, y: Tensor) -> bool:
    """Whether the order changes for one of the two only, or for none."""
    return x.same_order(y) or x.in_logical_order or y.in_logical_order


def forward(x: Tensor, y: Tensor) -> PreparedKernel:
    """input0 → output."""
    return _copy("copy_forward", x, "input0", y, "output")


def backward(dy: Tensor, dx: Tensor) -> PreparedKernel:
    """output_gradient → input_gradient."""
    return _copy("copy_backward", dy, "output_gradient", dx, "input_gradient")


def _copy(name: str, source: Tensor, read: str, target: Tensor, write: str) -> PreparedKernel:
    if source.same_order(target):
        return replace(combination(name, (read,), write, (1.0,)), alias=(read, write))
    steps = Steps(name)
    if target.in_logical_order:
        steps.reorder(activation(source), read, plain(source.shape), write)
    else:
        steps.reorder(plain(target.shape), read, activation(target), write)
    return steps.prepared((read,), (write,))
