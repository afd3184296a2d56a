"""Two-dimensional pooling and its gradients."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.compiled import NativeFunction, float32_at, int64_at, native, prepared_pass
from crossbow.kernels.interface import PoolingGeometry, PreparedKernel
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn.memory import activation, attributes, engine, nbytes
from crossbow.kernels.onednn.primitive import Place, Steps
from crossbow.types import Layout, Phase, Shape, Tensor

Pair = tuple[int, int]


def forward(x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase) -> PreparedKernel:
    """input0 → output (and kept, when training with max pooling)."""
    if _overhangs(x.shape, y.shape, geometry):
        return _average_pass("pooling_forward", average_forward, "input0", "output", x, y, geometry)
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


def _after(x: Shape, y: Shape, geometry: PoolingGeometry) -> tuple[int, int]:
    """How far the last windows reach beyond the input, below and on the right; negative where they end before."""
    g = geometry
    height, width = (
        (windows - 1) * s + k - p - size
        for size, windows, k, s, p in zip(x[2:], y[2:], g.kernel, g.stride, g.padding, strict=True)
    )
    return height, width


def _sizes(x: Shape, y: Shape, geometry: PoolingGeometry) -> tuple[Pair, Pair, Pair, Pair, Pair]:
    """Strides, kernel, dilation, padding before and after, as the library wants them."""
    return geometry.stride, geometry.kernel, (0, 0), geometry.padding, _after(x, y, geometry)


def _overhangs(x: Shape, y: Shape, geometry: PoolingGeometry) -> bool:
    """Whether windows reach beyond the padding while padding counts: the library would count the overhang too."""
    after = _after(x, y, geometry)
    beyond = any(a > p for a, p in zip(after, geometry.padding, strict=True))
    return geometry.method == "average" and geometry.count_padding and beyond


# Average pooling that counts padding but not the overhang: our own pass, as the library has none.


def _average_pass(
    request: str, function: NativeFunction, read: str, write: str, x: Tensor, y: Tensor, geometry: PoolingGeometry
) -> PreparedKernel:
    g = geometry
    numbers = (*_strides(x), *_strides(y), *x.shape, *y.shape[2:], *g.kernel, *g.stride, *g.padding)
    return prepared_pass(f"{request} average", function, (read,), (write,), *numbers)


def _strides(tensor: Tensor) -> Shape:
    """Distances in elements between neighbours along N, C, H, W."""
    _, c, h, w = tensor.shape
    return (h * w * c, 1, w * c, c) if tensor.layout is Layout.CHANNELS_LAST else (c * h * w, h * w, w, 1)


@native
def average_forward(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, strides of x, of y, sizes N C H W, H' W', kernel, stride, padding."""
    b = int64_at(arguments)
    x, y = float32_at(b[0]), float32_at(b[1])
    for i in range(b[14]):
        top, bottom = i * b[18] - b[20], min(i * b[18] - b[20] + b[16], b[12] + b[20])
        for j in range(b[15]):
            left, right = j * b[19] - b[21], min(j * b[19] - b[21] + b[17], b[13] + b[21])
            share = np.float32((bottom - top) * (right - left))
            for n in range(b[10]):
                for c in range(b[11]):
                    total = np.float32(0)
                    for u in range(max(top, 0), min(bottom, b[12])):
                        for v in range(max(left, 0), min(right, b[13])):
                            total += x[n * b[2] + c * b[3] + u * b[4] + v * b[5]]
                    y[n * b[6] + c * b[7] + i * b[8] + j * b[9]] = total / share
    return 0


@native
def average_backward(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: dy, dx, strides of dx, of dy, sizes N C H W, H' W', kernel, stride, padding."""
    b = int64_at(arguments)
    dy, dx = float32_at(b[0]), float32_at(b[1])
    for index in range(b[10] * b[11] * b[12] * b[13]):
        dx[index] = np.float32(0)
    for i in range(b[14]):
        top, bottom = i * b[18] - b[20], min(i * b[18] - b[20] + b[16], b[12] + b[20])
        for j in range(b[15]):
            left, right = j * b[19] - b[21], min(j * b[19] - b[21] + b[17], b[13] + b[21])
            share = np.float32((bottom - top) * (right - left))
            for n in range(b[10]):
                for c in range(b[11]):
                    gradient = dy[n * b[6] + c * b[7] + i * b[8] + j * b[9]] / share
                    for u in range(max(top, 0), min(bottom, b[12])):
                        for v in range(max(left, 0), min(right, b[13])):
                            dx[n * b[2] + c * b[3] + u * b[4] + v * b[5]] += gradient
    return 0
