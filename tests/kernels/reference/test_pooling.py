from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crossbow.kernels.interface import PoolingGeometry
from crossbow.kernels.reference import Reference
from crossbow.ops.pool import pooled_size
from crossbow.types import Layout, Phase, aligned_zeros
from tests.kernels.reference.running import DTYPES, Numbers, channels_last, draw, nan, run, tensor


def brute_force(x: Numbers, dy: Numbers, g: PoolingGeometry) -> tuple[Numbers, Numbers]:
    """y and dx, one window at a time."""
    y, dx = np.zeros(dy.shape), np.zeros(x.shape)
    height, width = x.shape[2:]
    for n, c, i, j in itertools.product(*map(range, dy.shape)):
        top, left = i * g.stride[0] - g.padding[0], j * g.stride[1] - g.padding[1]
        window = [
            (row, column)
            for row in range(top, min(top + g.kernel[0], height + g.padding[0]))
            for column in range(left, min(left + g.kernel[1], width + g.padding[1]))
        ]
        inside = [(row, column) for row, column in window if 0 <= row < height and 0 <= column < width]
        values = [x[n, c, row, column] for row, column in inside]
        if g.method == "max":
            y[n, c, i, j] = max(values)
            dx[(n, c, *inside[values.index(max(values))])] += dy[n, c, i, j]
        else:
            divisor = len(window) if g.count_padding else len(inside)
            y[n, c, i, j] = sum(values) / divisor
            for row, column in inside:
                dx[n, c, row, column] += dy[n, c, i, j] / divisor
    return y, dx


def pool(x: Numbers, dy: Numbers, g: PoolingGeometry, layout: Layout = Layout.PLAIN) -> tuple[Numbers, Numbers]:
    """y and dx of the library."""
    library = Reference(x.dtype)
    order = channels_last if layout is Layout.CHANNELS_LAST else np.asarray
    xs, ys = tensor(x.shape, x.dtype, layout), tensor(dy.shape, x.dtype, layout)
    forward = library.pooling_forward(xs, ys, g, Phase.TRAIN)
    buffers = {
        "input0": order(x),
        "output": order(nan(dy.shape, x.dtype)),
        "output_gradient": order(dy),
        "input_gradient": order(nan(x.shape, x.dtype)),
        "kept": aligned_zeros(forward.kept),
    }
    run(forward, **buffers)
    run(library.pooling_backward(ys, xs, g), **buffers)
    return buffers["output"], buffers["input_gradient"]


@st.composite
def cases(draw_from: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int], PoolingGeometry]:
    sizes = (draw_from(st.integers(1, 9)), draw_from(st.integers(1, 9)))
    kernel = (draw_from(st.integers(1, 4)), draw_from(st.integers(1, 4)))
    stride = (draw_from(st.integers(1, 5)), draw_from(st.integers(1, 5)))
    padding = (draw_from(st.integers(0, kernel[0] - 1)), draw_from(st.integers(0, kernel[1] - 1)))
    rounding = draw_from(st.sampled_from(["ceil", "floor"]))
    windows = [pooled_size(*values, rounding) for values in zip(sizes, kernel, stride, padding, strict=True)]
    assume(min(windows) >= 1)
    geometry = PoolingGeometry(
        draw_from(st.sampled_from(["max", "average"])), kernel, stride, padding, draw_from(st.booleans())
    )
    return sizes, (windows[0], windows[1]), geometry


@settings(max_examples=150, deadline=None)
@given(case=cases(), layout=st.sampled_from(Layout), ties=st.booleans(), dtype=st.sampled_from(DTYPES))
def test_against_loops(
    case: tuple[tuple[int, int], tuple[int, int], PoolingGeometry], layout: Layout, ties: bool, dtype: Any
) -> None:
    sizes, windows, geometry = case
    x, dy = draw(2, 3, *sizes, dtype=dtype), draw(2, 3, *windows, dtype=dtype, seed=1)
    if ties:
        x = np.round(x)  # many equal maxima: the first wins
    y, dx = pool(x, dy, geometry, layout)
    expected_y, expected_dx = brute_force(x, dy, geometry)
    tolerance = 1e-12 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(y, expected_y, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(dx, expected_dx, rtol=tolerance, atol=tolerance)


def test_nan_comes_through() -> None:
    x = np.zeros((1, 1, 2, 4))
    x[0, 0, 1, 1] = np.nan
    y, dx = pool(x, np.ones((1, 1, 1, 2)), PoolingGeometry("max", (2, 2), (2, 2)))
    np.testing.assert_array_equal(y, [[[[np.nan, 0]]]])
    np.testing.assert_array_equal(dx, [[[[0, 0, 1, 0], [0, 1, 0, 0]]]])


def test_what_is_kept() -> None:
    library, g = Reference(), PoolingGeometry("max", (2, 2), (2, 2))
    x, y = tensor((2, 3, 8, 8), np.float32), tensor((2, 3, 4, 4), np.float32)
    assert library.pooling_forward(x, y, g, Phase.TRAIN).kept == y.elements * 4
    assert library.pooling_forward(x, y, g, Phase.CHECK).kept == 0
    average = PoolingGeometry("average", (2, 2), (2, 2))
    assert library.pooling_forward(x, y, average, Phase.TRAIN).kept == 0
    assert "kept" not in library.pooling_backward(y, x, average).reads
