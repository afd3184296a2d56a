"""A tensor with its axes, or parts of them, in another order: a reorder between different strides."""

from __future__ import annotations

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import TransposeBackward, TransposeForward
from crossbow.kernels.strides import transposed_strides
from crossbow.types import Shape


@ONEDNN.kernel(TransposeForward, lambda request: request.alias is None)
def forward(request: TransposeForward) -> PreparedKernel:
    turned, from_x, to_y = transposed_strides(request.x, request.y, request.sizes, request.order)
    return _moved(request, turned, from_x, to_y)


@ONEDNN.kernel(TransposeBackward, lambda request: request.alias is None)
def backward(request: TransposeBackward) -> PreparedKernel:
    turned, of_dx, of_dy = transposed_strides(request.dx, request.dy, request.sizes, request.order)
    return _moved(request, turned, of_dy, of_dx)


def _moved(request: TransposeForward | TransposeBackward, sizes: Shape, from_: Shape, to: Shape) -> PreparedKernel:
    steps, (read,), (write,) = PrimitiveSteps(request), request.reads, request.writes
    steps.reorder(dnnl.strided_memory_desc(sizes, from_), read, dnnl.strided_memory_desc(sizes, to), write)
    return steps.prepared()
