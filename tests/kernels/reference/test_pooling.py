from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.ops.pool import pooled_size
from crossbow.types import Layout, Phase, Shape
from tests.kernels.reference.running import DTYPES, Numbers, channels_last, draw, nan, run, tensor


def brute_force(x: Numbers, dy: Numbers, g: PoolingGeometry) -> tuple[Numbers, Numbers]:
    """y and dx, one window at a time."""
    y, dx = np.zeros(dy.shape), np.zeros(x.shape)
    sizes = x.shape[2:]
    for place in itertools.product(*map(range, dy.shape)):
        n, c, *output = place
        axes = zip(output, g.kernel, g.stride, g.dilation, g.padding, sizes, strict=True)
        window = list(
            itertools.product(
                *(
                    [spot for u in range(k) if (spot := i * s - before + u * d) < size + after]
                    for i, k, s, d, (before, after), size in axes
                )
            )
        )
        inside = [(n, c, *spot) for spot in window if all(0 <= i < size for i, size in zip(spot, sizes, strict=True))]
        values = [x[spot] for spot in inside]
        if g.method == "max":
            y[place] = max(values)
            dx[inside[values.index(max(values))]] += dy[place]
        else:
            divisor = len(window) if g.count_padding else len(inside)
            y[place] = sum(values) / divisor
            for spot in inside:
                dx[spot] += dy[place] / divisor
    return y, dx


def pool(x: Numbers, dy: Numbers, g: PoolingGeometry, layout: Layout = Layout.PLAIN) -> tuple[Numbers, Numbers]:
    """y and dx of the library."""
    library = Reference(x.dtype)
    order = channels_last if layout is Layout.CHANNELS_LAST else np.asarray
    xs, ys = tensor(x.shape, x.dtype, layout), tensor(dy.shape, x.dtype, layout)
    forward = library.prepare(PoolingForward(xs, ys, g, Phase.TRAIN))
    buffers = {
        "input0": order(x),
        "output": order(nan(dy.shape, x.dtype)),
        "output_gradient": order(dy),
        "input_gradient": order(nan(x.shape, x.dtype)),
        "kept": aligned_zeros(forward.kept),
    }
    run(forward, **buffers)
    run(library.prepare(PoolingBackward(ys, xs, g)), **buffers)
    return buffers["output"], buffers["input_gradient"]


@st.composite
def cases(draw_from: st.DrawFn) -> tuple[Shape, Shape, PoolingGeometry]:
    axes = draw_from(st.sampled_from([1, 2, 2, 3]))

    def each(lowest: int, highest: int) -> tuple[int, ...]:
        return tuple(draw_from(st.integers(lowest, highest)) for _ in range(axes))

    kernel, dilation, stride = each(1, 4 if axes < 3 else 2), each(1, 2), each(1, 5)
    sizes = tuple(d - 1 + size for d, size in zip(dilation, each(1, 9 if axes < 3 else 4), strict=True))
    reach = [st.integers(0, d * (k - 1)) for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple((draw_from(most), draw_from(most)) for most in reach)
    rounding, method = draw_from(st.sampled_from(["ceil", "floor"])), draw_from(st.sampled_from(["max", "average"]))
    g = PoolingGeometry(kernel, stride, padding, dilation, method, draw_from(st.booleans()))
    values = zip(sizes, g.extent, stride, padding, strict=True)
    windows = tuple(pooled_size(size, extent, s, p, rounding) for size, extent, s, p in values)
    assume(min(windows) >= 1)
    return sizes, windows, g


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(case=cases(), layout=st.sampled_from(Layout), ties=st.booleans(), dtype=st.sampled_from(DTYPES))
def test_against_loops(case: tuple[Shape, Shape, PoolingGeometry], layout: Layout, ties: bool, dtype: Any) -> None:
    sizes, windows, geometry = case
    assume(layout is Layout.PLAIN or len(sizes) == 2)
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
    y, dx = pool(x, np.ones((1, 1, 1, 2)), PoolingGeometry((2, 2), (2, 2)))
    np.testing.assert_array_equal(y, [[[[np.nan, 0]]]])
    np.testing.assert_array_equal(dx, [[[[0, 0, 1, 0], [0, 1, 0, 0]]]])


def test_what_is_kept() -> None:
    library, g = Reference(), PoolingGeometry((2, 2), (2, 2))
    x, y = tensor((2, 3, 8, 8), np.float32), tensor((2, 3, 4, 4), np.float32)
    assert library.prepare(PoolingForward(x, y, g, Phase.TRAIN)).kept == y.elements * 4
    assert library.prepare(PoolingForward(x, y, g, Phase.CHECK)).kept == 0
    stochastic = PoolingGeometry((2, 2), (2, 2), method="stochastic")
    assert library.prepare(PoolingForward(x, y, stochastic, Phase.TRAIN)).kept == y.elements * 4
    assert library.prepare(PoolingForward(x, y, stochastic, Phase.CHECK)).reads == ("input0",)
    average = PoolingGeometry((2, 2), (2, 2), method="average")
    assert library.prepare(PoolingForward(x, y, average, Phase.TRAIN)).kept == 0
    assert "kept" not in library.prepare(PoolingBackward(y, x, average)).reads
