from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import InnerProductBackwardData, InnerProductBackwardWeights, InnerProductForward
from crossbow.types import Layout
from tests.kernels.reference.running import DTYPES, channels_last, draw, nan, run, tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4, 6), Layout.PLAIN),
        ((1, 1), Layout.PLAIN),
        ((4, 3, 2, 5), Layout.PLAIN),
        ((4, 3, 2, 5), Layout.CHANNELS_LAST),
    ],
)
def test_against_loops(shape: tuple[int, ...], layout: Layout, with_bias: bool, dtype: Any) -> None:
    features, outputs = int(np.prod(shape[1:])), 3
    order = channels_last if layout is Layout.CHANNELS_LAST else np.asarray
    x, dy = order(draw(*shape, dtype=dtype)), draw(shape[0], outputs, dtype=dtype)
    w, b = draw(outputs, features, dtype=dtype), draw(outputs, dtype=dtype)
    buffers = {
        "input0": x,
        "weights": w,
        "bias": b,
        "output": nan(dy.shape, dtype),
        "output_gradient": dy,
        "input_gradient": order(nan(shape, dtype)),
        "weights_gradient": nan(w.shape, dtype),
        "bias_gradient": nan(b.shape, dtype),
    }
    library, weights = Reference(dtype), Variable(w.shape, np.dtype(dtype))
    bias = Variable(b.shape, np.dtype(dtype)) if with_bias else None
    xs, ys = tensor(shape, dtype, layout), tensor(dy.shape, dtype)
    run(library.prepare(InnerProductForward(xs, weights, bias, ys)), **buffers)
    run(library.prepare(InnerProductBackwardData(ys, weights, xs)), **buffers)
    run(library.prepare(InnerProductBackwardWeights(xs, ys, weights, bias)), **buffers)

    y, dx, dw = np.zeros(dy.shape), np.zeros((shape[0], features)), np.zeros(w.shape)
    rows = np.array([list(example.flat) for example in x])  # C, H, W order, whatever the memory
    for n in range(shape[0]):
        for o in range(outputs):
            y[n, o] = b[o] if with_bias else 0
            for f in range(features):
                y[n, o] += w[o, f] * rows[n, f]
                dx[n, f] += w[o, f] * dy[n, o]
                dw[o, f] += rows[n, f] * dy[n, o]
    tolerance = 1e-12 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(buffers["output"], y, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(buffers["input_gradient"], dx.reshape(shape), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(buffers["weights_gradient"], dw, rtol=tolerance, atol=tolerance)
    if with_bias:
        np.testing.assert_allclose(buffers["bias_gradient"], dy.sum(axis=0), rtol=tolerance, atol=tolerance)
    else:
        assert np.isnan(buffers["bias_gradient"]).all()
