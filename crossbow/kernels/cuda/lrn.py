"""Local response normalisation, across channels and within them, by our own passes, which keep nothing for the
gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import CudaKernel, Structure
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import LRNBackward, LRNForward, ResponseGeometry
from crossbow.types import Layout, Shape, Tensor


@CUDA.kernel(LRNForward)
def forward(request: LRNForward) -> PreparedKernel:
    x, geometry = request.x, request.geometry
    kernel, numbers = CudaKernel("lrn", "lrn_forward", x.dtype), _numbers(x, geometry)

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(x.elements, buffers["input0"], buffers["output"], *numbers),)

    return request.prepared("cuda", bind)


@CUDA.kernel(LRNBackward)
def backward(request: LRNBackward) -> PreparedKernel:
    x, geometry = request.x, request.geometry
    hand_on, gather = CudaKernel("lrn", "lrn_hand_on", x.dtype), CudaKernel("lrn", "lrn_backward", x.dtype)
    numbers = _numbers(x, geometry)

    def bind(buffers: Buffers) -> Sequence[Call]:
        given, felt = (buffers["input0"], buffers["output_gradient"]), buffers["workspace"]
        return (
            hand_on.each(x.elements, *given, felt, *numbers),
            gather.each(x.elements, *given, felt, buffers["input_gradient"], *numbers),
        )

    return request.prepared("cuda", bind, workspace=x.nbytes)


def _numbers(x: Tensor, geometry: ResponseGeometry) -> tuple[Structure | np.generic, ...]:
    """`Response` of sources/lrn.cu, and the constants."""
    g, real = geometry, x.dtype.type
    within = len(g.axes) > 1
    reach = (g.before, g.before if within else 0), (g.after, g.after if within else 0)
    response = Structure(*_sizes(x, within), *reach[0], *reach[1])
    return response, real(g.kappa), real(g.share), real(g.beta)


def _sizes(x: Tensor, within: bool) -> Shape:
    """Sizes in memory order: outer, rows, columns, inner."""
    n, channels, *image = x.shape
    if x.layout is Layout.CHANNELS_LAST:
        return (n, *image, channels) if within else (n * math.prod(image), channels, 1, 1)
    return (n * channels, *image, 1) if within else (n, channels, 1, math.prod(image))
