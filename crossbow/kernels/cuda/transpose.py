"""A tensor with its axes, or parts of them, in another order."""

from __future__ import annotations

from crossbow.kernels.cuda.copy import moved, prepared_copy
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import TransposeBackward, TransposeForward
from crossbow.kernels.strides import transposed_strides


@CUDA.kernel(TransposeForward)
def forward(request: TransposeForward) -> PreparedKernel:
    y, (turned, from_x, to_y) = request.y, transposed_strides(request.x, request.y, request.sizes, request.order)
    return prepared_copy(request, moved(y.dtype, turned, from_x, to_y))


@CUDA.kernel(TransposeBackward)
def backward(request: TransposeBackward) -> PreparedKernel:
    dx, (turned, of_dx, of_dy) = request.dx, transposed_strides(request.dx, request.dy, request.sizes, request.order)
    return prepared_copy(request, moved(dx.dtype, turned, of_dy, of_dx))
