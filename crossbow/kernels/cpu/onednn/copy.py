"""A copy of a tensor's elements to another tensor, in logical order: a reorder."""

from __future__ import annotations

from crossbow.kernels.cpu.onednn.memory import activation, plain
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import CopyBackward, CopyForward
from crossbow.types import Tensor


def _reorders(x: Tensor, y: Tensor) -> bool:
    """Whether the memory order changes, and one of the two is the logical order."""
    return not x.same_order(y) and (x.in_logical_order or y.in_logical_order)


@ONEDNN.kernel(CopyForward, lambda request: _reorders(request.x, request.y))
def forward(request: CopyForward) -> PreparedKernel:
    return _reordered(request, request.x, request.y)


@ONEDNN.kernel(CopyBackward, lambda request: _reorders(request.dy, request.dx))
def backward(request: CopyBackward) -> PreparedKernel:
    return _reordered(request, request.dy, request.dx)


def _reordered(request: CopyForward | CopyBackward, source: Tensor, target: Tensor) -> PreparedKernel:
    steps, (read,), (write,) = PrimitiveSteps(request), request.reads, request.writes
    if target.in_logical_order:
        steps.reorder(activation(source), read, plain(source.shape), write)
    else:
        steps.reorder(plain(target.shape), read, activation(target), write)
    return steps.prepared()
