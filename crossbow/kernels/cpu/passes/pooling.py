"""Two-dimensional average pooling and its gradient."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.compiled import float32_at, inlined, int64_at, native, prepared_pass
from crossbow.kernels.cpu.passes.sums import image_averages
from crossbow.kernels.cpu.passes.windows import slides, window_slots
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.types import Shape


@PASSES.kernel(
    PoolingForward,
    lambda request: (
        slides(request.x, request.geometry, "average")
        and whole_images(request.x.shape, request.geometry)
        and not overhangs(request.x.shape, request.y.shape, request.geometry)
    ),
)
def ofwhole_images(request: PoolingForward) -> PreparedKernel:
    return image_averages(request)


def after_windows(x: Shape, y: Shape, geometry: PoolingGeometry) -> Shape:
    """How far the last windows reach beyond the input, below and on the right; negative where they end before."""
    g = geometry
    return tuple(
        (windows - 1) * s + extent - before - size
        for size, windows, extent, s, (before, _) in zip(x[2:], y[2:], g.extent, g.stride, g.padding, strict=True)
    )


def overhangs(x: Shape, y: Shape, geometry: PoolingGeometry) -> bool:
    """Whether windows reach beyond the padding while padding counts: the library would count the overhang too."""
    after = after_windows(x, y, geometry)
    beyond = any(reach > padding for reach, (_, padding) in zip(after, geometry.padding, strict=True))
    return geometry.count_padding and beyond


def whole_images(x: Shape, geometry: PoolingGeometry) -> bool:
    """Whether it is global average pooling: a single window, of the whole input without padding."""
    padded = any(before or after for before, after in geometry.padding)
    return geometry.extent == x[2:] == geometry.kernel and not padded


@PASSES.kernel(PoolingForward, lambda request: slides(request.x, request.geometry, "average"))
def own_forward(request: PoolingForward) -> PreparedKernel:
    slots = (*window_slots(request.x, request.y, request.geometry), int(request.geometry.count_padding))
    return prepared_pass(request, average_forward, *slots)


@PASSES.kernel(PoolingBackward, lambda request: slides(request.dx, request.geometry, "average"))
def own_backward(request: PoolingBackward) -> PreparedKernel:
    slots = (*window_slots(request.dx, request.dy, request.geometry), int(request.geometry.count_padding))
    return prepared_pass(request, average_backward, *slots)


@inlined
def _counted(start: int, size: int, before: int, after: int, kernel: int, dilation: int, counts: int) -> int:
    """How many positions of a window count on one axis: those on input or padding, or, unless `counts`, on input."""
    if counts == 0:
        before, after = 0, 0
    first = max(0, -((start + before) // dilation))
    return max(min(kernel, (size + after - start + dilation - 1) // dilation) - first, 0)


@native
def average_forward(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, then as `window_slots`, whether padding counts."""
    b = int64_at(arguments)
    x, y = float32_at(b[0]), float32_at(b[1])
    for i in range(b[14]):
        top = i * b[18] - b[20]
        rows = _counted(top, b[12], b[20], b[22], b[16], b[24], b[26])
        for j in range(b[15]):
            left = j * b[19] - b[21]
            columns = _counted(left, b[13], b[21], b[23], b[17], b[25], b[26])
            share = np.float32(rows * columns)
            for n in range(b[10]):
                for c in range(b[11]):
                    total = np.float32(0)
                    for u in range(top, top + b[16] * b[24], b[24]):
                        for v in range(left, left + b[17] * b[25], b[25]):
                            if 0 <= u < b[12] and 0 <= v < b[13]:
                                total += x[n * b[2] + c * b[3] + u * b[4] + v * b[5]]
                    y[n * b[6] + c * b[7] + i * b[8] + j * b[9]] = total / share
    return 0


@native
def average_backward(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: dy, dx, then as `window_slots` of dx and dy, whether padding counts."""
    b = int64_at(arguments)
    dy, dx = float32_at(b[0]), float32_at(b[1])
    for index in range(b[10] * b[11] * b[12] * b[13]):
        dx[index] = np.float32(0)
    for i in range(b[14]):
        top = i * b[18] - b[20]
        rows = _counted(top, b[12], b[20], b[22], b[16], b[24], b[26])
        for j in range(b[15]):
            left = j * b[19] - b[21]
            columns = _counted(left, b[13], b[21], b[23], b[17], b[25], b[26])
            share = np.float32(rows * columns)
            for n in range(b[10]):
                for c in range(b[11]):
                    gradient = dy[n * b[6] + c * b[7] + i * b[8] + j * b[9]] / share
                    for u in range(top, top + b[16] * b[24], b[24]):
                        for v in range(left, left + b[17] * b[25], b[25]):
                            if 0 <= u < b[12] and 0 <= v < b[13]:
                                dx[n * b[2] + c * b[3] + u * b[4] + v * b[5]] += gradient
    return 0
