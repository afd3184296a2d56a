"""Two-dimensional pooling and its gradients."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.compiled import NativeFunction, float32_at, int64_at, native, prepared_pass
from crossbow.kernels.interface import PoolingGeometry, PreparedKernel
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn.memory import activation, attributes, engine, nbytes
from crossbow.kernels.onednn.primitive import Place, Steps
from crossbow.kernels.onednn.sums import image_averages
from crossbow.types import Layout, Phase, Shape, Tensor


def forward(x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase) -> PreparedKernel:
    """input0 → output (and kept, when training with max pooling)."""
    if _overhangs(x.shape, y.shape, geometry):
        return _average_pass("pooling_forward", average_forward, "input0", "output", x, y, geometry)
    if _whole_images(x.shape, geometry):
        return image_averages(x)
    training = phase is Phase.TRAIN and geometry.method == "max"
    descriptor = _forward(x, y, geometry, training)
    steps = Steps("pooling_forward")
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (activation(x), "input0"),
        dnnl.ARG_DST: (activation(y), "output"),
    }
    kept = dnnl.dnnl_primitive_desc_query_md(descriptor, dnnl.QUERY_WORKSPACE_MD) if training else None
    if kept is not None:
        operands[dnnl.ARG_WORKSPACE] = (kept, "kept")
    steps.add(geometry.method, descriptor, operands)
    if kept is None:
        return steps.prepared(("input0",), ("output",))
    return steps.prepared(("input0",), ("output", "kept"), kept=nbytes(kept))


def backward(dy: Tensor, dx: Tensor, geometry: PoolingGeometry) -> PreparedKernel:
    """output_gradient[, kept] → input_gradient."""
    if _overhangs(dx.shape, dy.shape, geometry):
        return _average_pass(
            "pooling_backward", average_backward, "output_gradient", "input_gradient", dx, dy, geometry
        )
    hint = _forward(dx, dy, geometry, True)
    descriptor = dnnl.dnnl_pooling_backward_primitive_desc_create(
        engine(),
        _algorithm(geometry),
        activation(dx),
        activation(dy),
        *_sizes(dx.shape, dy.shape, geometry),
        hint,
        attributes(),
    )
    steps = Steps("pooling_backward")
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_DIFF_DST: (activation(dy), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(dx), "input_gradient"),
    }
    reads = ["output_gradient"]
    kept = dnnl.dnnl_primitive_desc_query_md(descriptor, dnnl.QUERY_WORKSPACE_MD)
    if geometry.method == "max" and kept is not None:
        operands[dnnl.ARG_WORKSPACE] = (kept, "kept")
        reads.append("kept")
    steps.add(geometry.method, descriptor, operands)
    return steps.prepared(reads, ("input_gradient",))


def _forward(x: Tensor, y: Tensor, geometry: PoolingGeometry, training: bool) -> dnnl.Handle:
    return dnnl.dnnl_pooling_forward_primitive_desc_create(
        engine(),
        dnnl.FORWARD_TRAINING if training else dnnl.FORWARD_INFERENCE,
        _algorithm(geometry),
        activation(x),
        activation(y),
        *_sizes(x.shape, y.shape, geometry),
        attributes(),
    )


def _algorithm(geometry: PoolingGeometry) -> int:
    if geometry.method == "max":
        return dnnl.POOLING_MAX
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
    return geometry.method == "average" and geometry.count_padding and beyond


def _whole_images(x: Shape, geometry: PoolingGeometry) -> bool:
    """Whether it is global average pooling: a single window, of the whole input without padding."""
    padded = any(before or after for before, after in geometry.padding)
    return geometry.method == "average" and geometry.extent == x[2:] == geometry.kernel and not padded


# Average pooling that counts padding but not the overhang: our own pass, as the library has none.


def _average_pass(
    request: str, function: NativeFunction, read: str, write: str, x: Tensor, y: Tensor, geometry: PoolingGeometry
) -> PreparedKernel:
    return prepared_pass(f"{request} average", function, (read,), (write,), *window_slots(x, y, geometry))


def window_slots(x: Tensor, y: Tensor, geometry: PoolingGeometry) -> tuple[int, ...]:
    """What a pass over windows has to know: strides of x, of y, N C H W, H' W', kernel, stride, padding before, after,
    dilation."""
    before, after = zip(*geometry.padding, strict=True)
    sizes = (*x.shape, *y.shape[2:], *geometry.kernel, *geometry.stride, *before, *after, *geometry.dilation)
    return (*_strides(x), *_strides(y), *sizes)


def _strides(tensor: Tensor) -> Shape:
    """Distances in elements between neighbours along N, C, H, W."""
    _, c, h, w = tensor.shape
    return (h * w * c, 1, w * c, c) if tensor.layout is Layout.CHANNELS_LAST else (c * h * w, h * w, w, 1)


@native
def average_forward(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, then as `window_slots`."""
    b = int64_at(arguments)
    x, y = float32_at(b[0]), float32_at(b[1])
    for i in range(b[14]):
        top = i * b[18] - b[20]
        rows = min(b[16], (b[12] + b[22] - top + b[24] - 1) // b[24])
        for j in range(b[15]):
            left = j * b[19] - b[21]
            columns = min(b[17], (b[13] + b[23] - left + b[25] - 1) // b[25])
            share = np.float32(rows * columns)
            for n in range(b[10]):
                for c in range(b[11]):
                    total = np.float32(0)
                    for u in range(top, top + rows * b[24], b[24]):
                        for v in range(left, left + columns * b[25], b[25]):
                            if 0 <= u < b[12] and 0 <= v < b[13]:
                                total += x[n * b[2] + c * b[3] + u * b[4] + v * b[5]]
                    y[n * b[6] + c * b[7] + i * b[8] + j * b[9]] = total / share
    return 0


@native
def average_backward(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: dy, dx, then as `window_slots` of dx and dy."""
    b = int64_at(arguments)
    dy, dx = float32_at(b[0]), float32_at(b[1])
    for index in range(b[10] * b[11] * b[12] * b[13]):
        dx[index] = np.float32(0)
    for i in range(b[14]):
        top = i * b[18] - b[20]
        rows = min(b[16], (b[12] + b[22] - top + b[24] - 1) // b[24])
        for j in range(b[15]):
            left = j * b[19] - b[21]
            columns = min(b[17], (b[13] + b[23] - left + b[25] - 1) // b[25])
            share = np.float32(rows * columns)
            for n in range(b[10]):
                for c in range(b[11]):
                    gradient = dy[n * b[6] + c * b[7] + i * b[8] + j * b[9]] / share
                    for u in range(top, top + rows * b[24], b[24]):
                        for v in range(left, left + columns * b[25], b[25]):
                            if 0 <= u < b[12] and 0 <= v < b[13]:
                                dx[n * b[2] + c * b[3] + u * b[4] + v * b[5]] += gradient
    return 0
