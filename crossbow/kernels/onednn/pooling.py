"""Two-dimensional average pooling and its gradient."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.compiled import float32_at, inlined, int64_at, native, prepared_pass
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn.memory import activation, attributes, engine
from crossbow.kernels.onednn.primitive import Steps
from crossbow.kernels.onednn.rooms import ONEDNN, PASSES
from crossbow.kernels.onednn.sums import image_averages
from crossbow.kernels.onednn.windows import slides, window_slots
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.types import Shape, Tensor


@ONEDNN.kernel(
    PoolingForward,
    lambda request: (
        slides(request.x, request.geometry, "average")
        and not _overhangs(request.x.shape, request.y.shape, request.geometry)
        and not _whole_images(request.x.shape, request.geometry)
    ),
)
def forward(request: PoolingForward) -> PreparedKernel:
    x, y = request.x, request.y
    steps = Steps(request)
    operands = {dnnl.ARG_SRC: (activation(x), "input0"), dnnl.ARG_DST: (activation(y), "output")}
    steps.add("average", _forward(x, y, request.geometry), operands)
    return steps.prepared()


@ONEDNN.kernel(
    PoolingBackward,
    lambda request: (
        slides(request.dx, request.geometry, "average")
        and not _overhangs(request.dx.shape, request.dy.shape, request.geometry)
    ),
)
def backward(request: PoolingBackward) -> PreparedKernel:
    dy, dx, geometry = request.dy, request.dx, request.geometry
    descriptor = dnnl.dnnl_pooling_backward_primitive_desc_create(
        engine(),
        _algorithm(geometry),
        activation(dx),
        activation(dy),
        *_sizes(dx.shape, dy.shape, geometry),
        _forward(dx, dy, geometry),
        attributes(),
    )
    steps = Steps(request)
    operands = {
        dnnl.ARG_DIFF_DST: (activation(dy), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(dx), "input_gradient"),
    }
    steps.add("average", descriptor, operands)
    return steps.prepared()


@PASSES.kernel(
    PoolingForward,
    lambda request: (
        slides(request.x, request.geometry, "average")
        and _whole_images(request.x.shape, request.geometry)
        and not _overhangs(request.x.shape, request.y.shape, request.geometry)
    ),
)
def of_whole_images(request: PoolingForward) -> PreparedKernel:
    return image_averages(request)


def _forward(x: Tensor, y: Tensor, geometry: PoolingGeometry) -> dnnl.Handle:
    return dnnl.dnnl_pooling_forward_primitive_desc_create(
        engine(),
        dnnl.FORWARD_INFERENCE,
        _algorithm(geometry),
        activation(x),
        activation(y),
        *_sizes(x.shape, y.shape, geometry),
        attributes(),
    )


def _algorithm(geometry: PoolingGeometry) -> int:
    return dnnl.POOLING_AVG_INCLUDE_PADDING if geometry.count_padding else dnnl.POOLING_AVG_EXCLUDE_PADDING


def _after(x: Shape, y: Shape, geometry: PoolingGeometry) -> Shape:
    """How far the last windows reach beyond the input, below and on the right; negative where they end before."""
    g = geometry
    return tuple(
        (windows - 1) * s + extent - before - size
        for size, windows, extent, s, (before, _) in zip(x[2:], y[2:], g.extent, g.stride, g.padding, strict=True)
    )


def _sizes(x: Shape, y: Shape, geometry: PoolingGeometry) -> tuple[Shape, Shape, Shape, Shape, Shape]:
    """Strides, kernel, dilation, padding before and after, as the library wants them."""
    dilation = tuple(d - 1 for d in geometry.dilation)
    before = tuple(before for before, _ in geometry.padding)
    return geometry.stride, geometry.kernel, dilation, before, _after(x, y, geometry)


def _overhangs(x: Shape, y: Shape, geometry: PoolingGeometry) -> bool:
    """Whether windows reach beyond the padding while padding counts: the library would count the overhang too."""
    after = _after(x, y, geometry)
    beyond = any(reach > padding for reach, (_, padding) in zip(after, geometry.padding, strict=True))
    return geometry.count_padding and beyond


def _whole_images(x: Shape, geometry: PoolingGeometry) -> bool:
    """Whether it is global average pooling: a single window, of the whole input without padding."""
    padded = any(before or after for before, after in geometry.padding)
    return geometry.extent == x[2:] == geometry.kernel and not padded


# Our own passes: where padding counts but not the overhang, which the library cannot do, and where it refuses.


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
