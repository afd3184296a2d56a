from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import ConvolutionGeometry, Variable
from crossbow.kernels.reference import Reference
from crossbow.types import Layout
from tests.kernels.reference.running import DTYPES, Numbers, channels_last, draw, nan, run, tensor

CASES = [
    ((2, 3, 5, 4), 4, ConvolutionGeometry((3, 3), padding=(1, 1))),
    ((1, 2, 6, 7), 3, ConvolutionGeometry((2, 3), stride=(2, 1), padding=(0, 2))),
    ((2, 4, 7, 7), 6, ConvolutionGeometry((3, 2), stride=(2, 3), padding=(2, 1), dilation=(2, 1), groups=2)),
    ((2, 3, 4, 4), 3, ConvolutionGeometry((3, 3), padding=(1, 1), groups=3)),
    ((3, 2, 5, 5), 2, ConvolutionGeometry((1, 1))),
    ((1, 2, 6, 6), 2, ConvolutionGeometry((2, 2), stride=(4, 4))),  # a border that no window reaches
]


def brute_force(x: Numbers, w: Numbers, b: Numbers, dy: Numbers, g: ConvolutionGeometry) -> tuple[Numbers, ...]:
    """y, dx, dw, db, one multiplication at a time."""
    y, dx, dw, db = (np.zeros(shape) for shape in (dy.shape, x.shape, w.shape, b.shape))
    ins, outs = w.shape[1], w.shape[0] // g.groups
    y += b[:, None, None]
    for n, o, i, j in itertools.product(*map(range, dy.shape)):
        db[o] += dy[n, o, i, j]
        for c, u, v in itertools.product(*map(range, w.shape[1:])):
            row = i * g.stride[0] + u * g.dilation[0] - g.padding[0]
            column = j * g.stride[1] + v * g.dilation[1] - g.padding[1]
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                place = (n, o // outs * ins + c, row, column)
                y[n, o, i, j] += w[o, c, u, v] * x[place]
                dw[o, c, u, v] += dy[n, o, i, j] * x[place]
                dx[place] += dy[n, o, i, j] * w[o, c, u, v]
    return y, dx, dw, db


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("shape", "outputs", "geometry"), CASES)
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
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(shape[2:], g.kernel, g.stride, g.padding, g.dilation, strict=True)
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
    run(library.convolution_forward(xs, weights, bias, ys, g), **buffers)
    run(library.convolution_backward_data(ys, weights, xs, g), **buffers)
    run(library.convolution_backward_weights(xs, ys, weights, bias, g), **buffers)
    y, dx, dw, db = brute_force(x, w, b, dy, g)
    tolerance = 1e-12 if dtype is np.float64 else 1e-4
    np.testing.assert_allclose(buffers["output"], y, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(buffers["input_gradient"], dx, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(buffers["weights_gradient"], dw, rtol=tolerance, atol=tolerance)
    if with_bias:
        np.testing.assert_allclose(buffers["bias_gradient"], db, rtol=tolerance, atol=tolerance)
    else:
        assert not buffers["bias_gradient"].any()
