from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.kernels.interface import PoolingGeometry
from crossbow.ops import Pool, PoolGradient, pool
from crossbow.ops.pool import pooled_size
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, Phase, Shape


def test_doctests() -> None:
    assert doctest.testmod(pool).failed == 0


@pytest.mark.parametrize(
    ("layer", "x", "y"),
    [
        (Pool(), (8, 3, 28, 28), (8, 3, 14, 14)),
        (Pool(), (1, 1, 5, 7), (1, 1, 3, 4)),  # ceil: the last windows hang over
        (Pool(rounding="floor"), (1, 1, 5, 7), (1, 1, 2, 3)),
        (Pool(kernel_size=3, padding=1), (1, 1, 112, 112), (1, 1, 57, 57)),
        (Pool(kernel_size=3, padding=1, rounding="floor"), (1, 1, 112, 112), (1, 1, 56, 56)),
        (Pool(kernel_size=(3, 2), stride=(1, 2)), (1, 1, 5, 5), (1, 1, 3, 3)),
        (Pool(kernel_size=2, stride=2, padding=1), (1, 1, 3, 3), (1, 1, 2, 2)),
        (Pool(kernel_size=1, stride=3), (1, 1, 5, 4), (1, 1, 2, 2)),  # a window behind the input is left out
        (Pool(kernel_size=3), (1, 1, 2, 2), (1, 1, 1, 1)),
        (Pool(global_pooling=True), (2, 64, 7, 9), (2, 64, 1, 1)),
    ],
    ids=str,
)
def test_shapes(layer: Pool, x: Shape, y: Shape) -> None:
    assert layer.output_shape(x) == y


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(1, 40),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 7),
    padding=st.integers(0, 6),
    rounding=st.sampled_from(["ceil", "floor"]),
)
def test_every_window_holds_an_element_and_ceil_reaches_them_all(
    size: int, kernel: int, stride: int, padding: int, rounding: str
) -> None:
    padding = min(padding, kernel - 1)
    windows = pooled_size(size, kernel, stride, padding, rounding)
    for window in range(windows):
        begin = window * stride - padding
        assert max(begin, 0) < min(begin + kernel, size)
    if rounding == "ceil" and kernel >= stride:
        assert (windows - 1) * stride - padding + kernel >= size
    if rounding == "floor" and windows > 0:
        assert (windows - 1) * stride - padding + kernel <= size + padding


def test_geometry_of_global_pooling_is_the_whole_image() -> None:
    assert Pool(method="average", global_pooling=True).geometry((2, 3, 4, 5)) == PoolingGeometry(
        "average", kernel=(4, 5), stride=(1, 1)
    )


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (Pool(), (2, 3), r"shape \(N, C, H, W\). Received: \(2, 3\)"),
        (Pool(kernel_size=3, rounding="floor"), (1, 1, 2, 5), "as large as the window. Received: input 2×5"),
    ],
)
def test_wrong_shapes(layer: Pool, x: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer.output_shape(x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "stochastic"}, "method must be 'max' or 'average'.*Received: method='stochastic'"),
        ({"method": "mean"}, "method must be one of 'max', 'average', 'stochastic'"),
        ({"rounding": "up"}, "rounding must be one of 'ceil', 'floor'"),
        ({"kernel_size": 0}, "kernel_size must be an integer ≥ 1"),
        ({"stride": (1, 0)}, "stride must be an integer ≥ 1"),
        ({"padding": 2}, "padding must be smaller than kernel_size=2. Received: padding=2"),
        ({"kernel_size": (3, 1), "padding": (1, 1)}, "padding must be smaller"),
        ({"padding": 1, "global_pooling": True}, "padding must be 0 with global_pooling=True"),
        ({"count_padding": 1}, "count_padding must be True or False"),
    ],
)
def test_bad_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Pool(**values)


IMAGE = np.array([[[[1.0, 5.0, 2.0], [4.0, 5.0, 0.0], [7.0, 6.0, 9.0]]]])


def test_max_by_hand_overlapping_windows_add_up_and_the_first_of_equals_wins() -> None:
    dy = np.array([[[[1.0, 2.0], [4.0, 8.0]]]])
    run = run_operator(Pool(kernel_size=2, stride=1), [IMAGE], output_gradient=dy)
    np.testing.assert_array_equal(run.outputs[0], [[[[5, 5], [7, 9]]]])
    np.testing.assert_array_equal(run.input_gradients[0], [[[[0, 3, 0], [0, 0, 0], [4, 0, 8]]]])


def test_max_of_windows_that_hang_over() -> None:
    dy = np.array([[[[1.0, 2.0], [4.0, 8.0]]]])
    run = run_operator(Pool(), [-IMAGE], output_gradient=dy)
    np.testing.assert_array_equal(run.outputs[0], [[[[-1, 0], [-6, -9]]]])  # negative: padding does not count as 0
    np.testing.assert_array_equal(run.input_gradients[0], [[[[1, 0, 0], [0, 0, 2], [0, 4, 8]]]])


@pytest.mark.parametrize(
    ("layer", "y"),
    [
        (Pool(method="average"), [[15 / 4, 2 / 2], [13 / 2, 9 / 1]]),
        # Four windows of which one element (top left), two or four lie in the image: 2 × 2, or cut off by the padding.
        (Pool(method="average", padding=1), [[1 / 4, 7 / 4], [11 / 4, 20 / 4]]),
        (Pool(method="average", padding=1, count_padding=False), [[1 / 1, 7 / 2], [11 / 2, 20 / 4]]),
        (Pool(method="average", global_pooling=True), [[39 / 9]]),
        # The second window has two rows of image, one of padding, none of the overhang beyond: 9 / (3 · 3).
        (Pool(method="average", kernel_size=3, stride=3, padding=1), [[15 / 9, 2 / 6], [13 / 6, 9 / 4]]),
    ],
    ids=str,
)
def test_average_by_hand(layer: Pool, y: list[list[float]]) -> None:
    np.testing.assert_allclose(run_operator(layer, [IMAGE], dtype=np.float64).outputs[0], [[y]], rtol=1e-15)


def test_average_gradient_by_hand() -> None:
    dy = np.array([[[[4.0, 2.0], [6.0, 8.0]]]])
    run = run_operator(Pool(method="average"), [IMAGE], output_gradient=dy)
    np.testing.assert_array_equal(run.input_gradients[0], [[[[1, 1, 1], [1, 1, 1], [3, 3, 8]]]])


def test_check_phase_gives_the_same() -> None:
    np.testing.assert_array_equal(run_operator(Pool(), [IMAGE], phase=Phase.CHECK).outputs[0], [[[[5, 2], [7, 9]]]])


@pytest.mark.parametrize("method", ["max", "average"])
@pytest.mark.parametrize(
    "values",
    [
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 1), "rounding": "floor"},
        {"kernel_size": 2, "stride": 3, "count_padding": False, "padding": 1},
        {"global_pooling": True},
    ],
    ids=str,
)
def test_gradients(method: str, values: dict[str, Any]) -> None:
    layer = Pool(method=method, **values)
    assert layer.gradient() == PoolGradient()
    check_gradients(layer, [(2, 3, 6, 5)])
