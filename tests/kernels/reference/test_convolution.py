from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.types import Layout
from tests.kernels.reference.running import DTYPES, Numbers, channels_last, draw, nan, run, tensor

CASES = [
    ((2, 3, 5, 4), 4, ConvolutionGeometry((3, 3), padding=((1, 1), (1, 1)))),
    ((1, 2, 6, 7), 3, ConvolutionGeometry((2, 3), stride=(2, 1), padding=((0, 0), (1, 2)))),
    (
        (2, 4, 7, 7),
        6,
        ConvolutionGeometry((3, 2), stride=(2, 3), padding=((2, 2), (0, 1)), dilation=(2, 1), groups=2),
    ),
    ((2, 3, 4, 4), 3, ConvolutionGeometry((3, 3), padding=((1, 1), (2, 0)), groups=3)),
    ((2, 3, 7), 4, ConvolutionGeometry((3,), stride=(2,), padding=((1, 2),))),
    ((2, 4, 9), 2, ConvolutionGeometry((3,), dilation=(3,), padding=((0, 4),), groups=2)),
    ((2, 2, 3, 4, 5), 3, ConvolutionGeometry((2, 1, 3), padding=((1, 0), (0, 0), (1, 1)))),
    (
        (1, 4, 5, 4, 3),
        2,
        ConvolutionGeometry((2, 2, 2), (2, 1, 2), ((0, 1), (1, 1), (2, 0)), (2, 3, 1), groups=2),
    ),
    ((3, 2, 5, 5), 2, ConvolutionGeometry((1, 1))),
    ((1, 2, 6, 6), 2, ConvolutionGeometry((2, 2), stride=(4, 4))),  # a border that no window reaches
]


def brute_force(x: Numbers, w: Numbers, b: Numbers, dy: Numbers, g: ConvolutionGeometry) -> tuple[Numbers, ...]:
    """y, dx, dw, db, one multiplication at a time."""
    y, dx, dw, db = (np.zeros(shape) for shape in (dy.shape, x.shape, w.shape, b.shape))
    ins, outs = w.shape[1], w.shape[0] // g.groups
    y += b.reshape(-1, *[1] * (x.ndim - 2))
    for n, o, *window in itertools.product(*map(range, dy.shape)):
        db[o] += dy[n, o, *window]
        for c, *position in itertools.product(*map(range, w.shape[1:])):
            axes = zip(window, position, g.stride, g.dilation, g.padding, strict=True)
            spot = [i * s + u * d - before for i, u, s, d, (before, _) in axes]
            if all(0 <= i < size for i, size in zip(spot, x.shape[2:], strict=True)):
                place, weight = (n, o // outs * ins + c, *spot), (o, c, *position)
                y[n, o, *window] += w[weight] * x[place]
                dw[weight] += dy[n, o, *window] * x[place]
                dx[place] += dy[n, o, *window] * w[weight]
    return y, dx, dw, db


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("shape", "outputs", "geometry", "layout"),
    [(*case, layout) for case in CASES for layout in Layout if layout is Layout.PLAIN or len(case[0]) == 4],
)
def test_against_loops(
    shape: tuple[int, ...],
    outputs: int,
    geometry: ConvolutionGeometry,
    layout: Layout,
    with_bias: bool,
    dtype: Any,
) -> None:
    g, library = geometry, Reference(dtype)
    sizes = [
        (size + before + after - extent) // s + 1
        for size, extent, s, (before, after) in zip(shape[2:], g.extent, g.stride, g.padding, strict=True)
    ]
    order = channels_last if layout is Layout.CHANNELS_LAST else np.asarray
    x, dy = order(draw(*shape, dtype=dtype)), order(draw(shape[0], outputs, *sizes, dtype=dtype))
    w = draw(outputs, shape[1] // g.groups, *g.kernel, dtype=dtype)
    b = draw(outputs, dtype=dtype) if with_bias else np.zeros(outputs, dtype)
    buffers = {
        "input0": x,
        "weights": w,
        "bias": b,
        "output": order(nan(dy.shape, dtype)),
        "output_gradient": dy,
        "input_gradient": order(nan(x.shape, dtype)),
        "weights_gradient": nan(w.shape, dtype),
        "bias_gradient": nan(b.shape, dtype) if with_bias else np.zeros(outputs, dtype),
    }
    weights = Variable(w.shape, np.dtype(dtype))
    bias = Variable(b.shape, np.dtype(dtype)) if with_bias else None
    xs, ys = tensor(x.shape, dtype, layout), tensor(dy.shape, dtype, layout)
    run(library.prepare(ConvolutionForward(xs, weights, bias, ys, g)), **buffers)
    run(library.prepare(ConvolutionBackwardData(ys, weights, xs, g)), **buffers)
    run(library.prepare(ConvolutionBackwardWeights(xs, ys, weights, bias, g)), **buffers)
    y, dx, dw, db = brute_force(x, w, b, dy, g)
    tolerance = 1e-12 if dtype is np.float64 else 1e-4
    np.testing.assert_allclose(buffers["output"], y, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(buffers["input_gradient"], dx, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(buffers["weights_gradient"], dw, rtol=tolerance, atol=tolerance)
    if with_bias:
        np.testing.assert_allclose(buffers["bias_gradient"], db, rtol=tolerance, atol=tolerance)
    else:
        assert not buffers["bias_gradient"].any()
