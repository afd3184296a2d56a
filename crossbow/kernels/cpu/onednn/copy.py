"""A copy of a tensor's elements to another tensor, in logical order: a reorder."""

from __future__ import annotations

from crossbow.kernels.cpu.onednn.memory import activation, plain
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.passes.moves import one_is_plain
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import CopyBackward, CopyForward
from crossbow.types import Tensor


@ONEDNN.kernel(CopyForward, lambda request: one_is_plain(request.x, request.y))
def forward(request: CopyForward) -> PreparedKernel:
    return _reordered(request, request.x, request.y)


@ONEDNN.kernel(CopyBackward, lambda request: one_is_plain(request.dy, request.dx))
def backward(request: CopyBackward) -> PreparedKernel:
    return _reordered(request, request.dy, request.dx)


def _reordered(request: CopyForward | CopyBackward, source: Tensor, target: Tensor) -> PreparedKernel:
    steps, (read,), (write,) = PrimitiveSteps(request), request.reads, request.writes
    if target.in_logical_order:
        steps.reorder(activation(source), read, plain(source.shape), write)
    else:
        steps.reorder(plain(target.shape), read, activation(target), write)
    return steps.prepared()
