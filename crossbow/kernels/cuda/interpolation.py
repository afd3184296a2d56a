"""Interpolation along the spatial axes: a kernel for each axis whose size changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import Argument, CudaKernel, Structure
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import InterpolationBackward, InterpolationForward, Request
from crossbow.kernels.requests.interpolation import AxisPass, axis_passes
from crossbow.types import ConfigurationError, Tensor

ALIGNMENT = 256
"""Alignment in bytes of intermediate results."""


@CUDA.kernel(InterpolationForward)
def forward(request: InterpolationForward) -> PreparedKernel:
    passes = axis_passes(request.x, request.y, request.axes)
    lengths = [each.outer * each.target * each.inner for each in passes]
    return _prepared(request, "interpolate", request.x, request.y, passes, lengths, ("input0", "output"))


@CUDA.kernel(InterpolationBackward)
def backward(request: InterpolationBackward) -> PreparedKernel:
    passes = axis_passes(request.dx, request.dy, request.axes)[::-1]
    lengths = [each.outer * each.size * each.inner for each in passes]
    roles = ("output_gradient", "input_gradient")
    return _prepared(request, "interpolate_backward", request.dy, request.dx, passes, lengths, roles)


def _prepared(
    request: Request,
    function: str,
    source: Tensor,
    result: Tensor,
    passes: Sequence[AxisPass],
    lengths: Sequence[int],
    roles: tuple[str, str],
) -> PreparedKernel:
    """The passes, which run one after the other. All except the last write to the workspace."""
    if source.layout is not result.layout:
        raise ConfigurationError(f"Cuda: expected one layout. Received: {source.layout.value}, {result.layout.value}")
    kernel, size = CudaKernel("interpolation", function, source.dtype), source.dtype.itemsize
    ends = np.cumsum([0, *(-(-length * size // ALIGNMENT) * ALIGNMENT for length in lengths[:-1])]).tolist()

    def bind(buffers: Buffers) -> Sequence[Call]:
        kept = [buffers["workspace"][ends[i] : ends[i] + lengths[i] * size] for i in range(len(passes) - 1)]
        places = [buffers[roles[0]], *kept, buffers[roles[1]]]
        return [
            kernel.each(length, places[number], places[number + 1], np.int64(length), *_numbers(each))
            for number, (each, length) in enumerate(zip(passes, lengths, strict=True))
        ]

    return request.prepared("cuda", bind, workspace=ends[-1])


def _numbers(each: AxisPass) -> tuple[Argument, ...]:
    """`Along` of sources/interpolation.cu, the ratio and the offset."""
    way = each.interpolation
    along = Structure(each.size, each.target, each.inner, int(way.linear))
    return along, np.float64(way.ratio), np.float64(way.offset)
