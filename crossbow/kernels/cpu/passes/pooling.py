"""Two-dimensional average pooling and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, inlined, native_pass, prepared_pass
from crossbow.kernels.cpu.passes.sums import image_averages
from crossbow.kernels.cpu.passes.windows import WINDOWS, slides, windows
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
def global_forward(request: PoolingForward) -> PreparedKernel:
    return image_averages(request)


def after_windows(x: Shape, y: Shape, geometry: PoolingGeometry) -> Shape:
    """Extent of the last windows beyond the input, below and on the right; negative if they end before it."""
    g = geometry
    return tuple(
        (windows - 1) * s + extent - before - size
        for size, windows, extent, s, (before, _) in zip(x[2:], y[2:], g.extent, g.stride, g.padding, strict=True)
    )


def overhangs(x: Shape, y: Shape, geometry: PoolingGeometry) -> bool:
    """Whether windows extend beyond the padding, and padding counts. The library would also count the overhang."""
    after = after_windows(x, y, geometry)
    beyond = any(reach > padding for reach, (_, padding) in zip(after, geometry.padding, strict=True))
    return geometry.count_padding and beyond


def whole_images(x: Shape, geometry: PoolingGeometry) -> bool:
    """Whether this is global average pooling: a single window, which is the whole input without padding."""
    padded = any(before or after for before, after in geometry.padding)
    return geometry.extent == x[2:] == geometry.kernel and not padded


@PASSES.kernel(PoolingForward, lambda request: slides(request.x, request.geometry, "average"))
def own_forward(request: PoolingForward) -> PreparedKernel:
    sizes, counts = windows(request.x, request.y, request.geometry), int(request.geometry.count_padding)
    return prepared_pass(request, average_forward, x="input0", y="output", windows=sizes, count_padding=counts)


@PASSES.kernel(PoolingBackward, lambda request: slides(request.dx, request.geometry, "average"))
def own_backward(request: PoolingBackward) -> PreparedKernel:
    sizes, counts = windows(request.dx, request.dy, request.geometry), int(request.geometry.count_padding)
    places: dict[str, Any] = {"dy": "output_gradient", "dx": "input_gradient"}
    return prepared_pass(request, average_backward, **places, windows=sizes, count_padding=counts)


@inlined
def _counted(start: int, size: int, before: int, after: int, kernel: int, dilation: int, counts: int) -> int:
    """Number of counted positions of a window on one axis: positions on input or padding or, unless `counts`, only on
    input."""
    if counts == 0:
        before, after = 0, 0
    first = max(0, -((start + before) // dilation))
    return max(min(kernel, (size + after - start + dilation - 1) // dilation) - first, 0)


@native_pass(Arguments(x=Address, y=Address, windows=WINDOWS, count_padding=int))
def average_forward(block: Any) -> int:
    w, x, y = block.windows, float32_at(block.x), float32_at(block.y)
    for i in range(w.rows):
        top = i * w.row_stride - w.top
        rows = _counted(top, w.height, w.top, w.bottom, w.kernel_rows, w.row_dilation, block.count_padding)
        for j in range(w.columns):
            left = j * w.column_stride - w.left
            columns = _counted(left, w.width, w.left, w.right, w.kernel_columns, w.column_dilation, block.count_padding)
            share = np.float32(rows * columns)
            for n in range(w.images):
                for c in range(w.channels):
                    total = np.float32(0)
                    for u in range(top, top + w.kernel_rows * w.row_dilation, w.row_dilation):
                        for v in range(left, left + w.kernel_columns * w.column_dilation, w.column_dilation):
                            if 0 <= u < w.height and 0 <= v < w.width:
                                total += x[n * w.x.n + c * w.x.c + u * w.x.h + v * w.x.w]
                    y[n * w.y.n + c * w.y.c + i * w.y.h + j * w.y.w] = total / share
    return 0


@native_pass(Arguments(dy=Address, dx=Address, windows=WINDOWS, count_padding=int))
def average_backward(block: Any) -> int:
    w, dy, dx = block.windows, float32_at(block.dy), float32_at(block.dx)
    for index in range(w.images * w.channels * w.height * w.width):
        dx[index] = np.float32(0)
    for i in range(w.rows):
        top = i * w.row_stride - w.top
        rows = _counted(top, w.height, w.top, w.bottom, w.kernel_rows, w.row_dilation, block.count_padding)
        for j in range(w.columns):
            left = j * w.column_stride - w.left
            columns = _counted(left, w.width, w.left, w.right, w.kernel_columns, w.column_dilation, block.count_padding)
            share = np.float32(rows * columns)
            for n in range(w.images):
                for c in range(w.channels):
                    gradient = dy[n * w.y.n + c * w.y.c + i * w.y.h + j * w.y.w] / share
                    for u in range(top, top + w.kernel_rows * w.row_dilation, w.row_dilation):
                        for v in range(left, left + w.kernel_columns * w.column_dilation, w.column_dilation):
                            if 0 <= u < w.height and 0 <= v < w.width:
                                dx[n * w.x.n + c * w.x.c + u * w.x.h + v * w.x.w] += gradient
    return 0
