from __future__ import annotations

import doctest
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.kernels.requests import PoolingGeometry
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
        (Pool(kernel_size=3, padding=((0, 1), (2, 0))), (1, 1, 6, 6), (1, 1, 3, 4)),
        (Pool(kernel_size=3, padding=((0, 1), (2, 0)), rounding="floor"), (1, 1, 6, 6), (1, 1, 3, 3)),
        (Pool(kernel_size=3, stride=1, dilation=2), (1, 1, 6, 9), (1, 1, 2, 5)),
        (Pool(padding=((0, 1),)), (1, 1, 4), (1, 1, 2)),  # a window that would begin in the padding behind is left out
        (Pool(), (2, 3, 5), (2, 3, 3)),
        (Pool(kernel_size=(1, 2, 3)), (2, 3, 4, 5, 6), (2, 3, 2, 3, 3)),
        (Pool(global_pooling=True), (2, 64, 7), (2, 64, 1)),
        (Pool(global_pooling=True), (2, 64, 7, 5, 3), (2, 64, 1, 1, 1)),
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
    padding=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    rounding=st.sampled_from(["ceil", "floor"]),
)
def test_every_window_holds_an_element_and_ceil_reaches_them_all(
    size: int, kernel: int, stride: int, padding: tuple[int, int], rounding: str
) -> None:
    before, after = (min(p, kernel - 1) for p in padding)
    windows = pooled_size(size, kernel, stride, (before, after), rounding)
    for window in range(windows):
        begin = window * stride - before
        assert max(begin, 0) < min(begin + kernel, size)
    if rounding == "ceil" and kernel >= stride:
        assert (windows - 1) * stride - before + kernel >= size
    if rounding == "floor" and windows > 0:
        assert (windows - 1) * stride - before + kernel <= size + after


def test_geometry_of_global_pooling_is_the_whole_image() -> None:
    assert Pool(method="average", global_pooling=True).geometry((2, 3, 4, 5)) == PoolingGeometry(
        kernel=(4, 5), method="average"
    )


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (Pool(), (2, 3), r"\(N, C, H, W\) or \(N, C, D, H, W\). Received: \(2, 3\)"),
        (Pool(kernel_size=(2, 2)), (2, 3, 4), r"2 spatial axes, for kernel_size=\(2, 2\). Received: \(2, 3, 4\)"),
        (Pool(kernel_size=3, rounding="floor"), (1, 1, 2, 5), "as large as the window. Received: input 2×5"),
        (Pool(stride=1, dilation=5), (1, 1, 5, 9), "as large as the window. Received: input 5×9"),
        # Elements at −1 and 1 of an input of one: there is no largest, and no mean.
        (Pool(dilation=2, padding=1), (1, 1, 1), "an element in every window. Received: input 1"),
        (
            Pool(method="average", count_padding=False, dilation=2, padding=1),
            (1, 1, 1),
            "an element in every window",
        ),
        (Pool(method="stochastic", dilation=2, padding=1), (1, 1, 1), "an element in every window"),
    ],
)
def test_wrong_shapes(layer: Pool, x: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer.output_shape(x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "mean"}, "method must be one of 'max', 'average', 'stochastic'"),
        ({"rounding": "up"}, "rounding must be one of 'ceil', 'floor'"),
        ({"kernel_size": 0}, "kernel_size must be an integer ≥ 1"),
        ({"stride": (1, 0)}, "stride must be an integer ≥ 1"),
        ({"padding": 2}, "padding must be smaller than the window of kernel_size=2. Received: padding=2"),
        (
            {"padding": ((0, 2),)},
            r"padding must be smaller than the window of kernel_size=2. Received: padding=\(\(0, 2\),",
        ),
        (
            {"padding": 3, "dilation": 2},
            "smaller than the window of kernel_size=2 with dilation=2. Received: padding=3",
        ),
        ({"kernel_size": (3, 1), "padding": (1, 1)}, "padding must be smaller"),
        ({"kernel_size": (3, 1), "padding": 1}, "padding must be smaller"),
        ({"padding": 1, "global_pooling": True}, "padding must be 0 with global_pooling=True"),
        ({"dilation": (1, 2), "global_pooling": True}, "dilation must be 1 with global_pooling=True"),
        ({"count_padding": 1}, "count_padding must be True or False"),
        ({"count_padding": False}, "count_padding must be left at True with method='max', where it does nothing"),
        (
            {"count_padding": False, "method": "stochastic"},
            "count_padding must be left at True with method='stochastic'",
        ),
        (
            {"count_padding": False, "method": "average", "global_pooling": True},
            "count_padding must be left at True with global_pooling=True, where it does nothing",
        ),
        ({"kernel_size": 7, "global_pooling": True}, "kernel_size must be left at 2 with global_pooling=True"),
        (
            {"stride": (3, 3), "global_pooling": True},
            "stride must be left at 2 with global_pooling=True, where it does",
        ),
        ({"rounding": "floor", "global_pooling": True}, "rounding must be left at 'ceil' with global_pooling=True"),
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


def test_dilated_windows_by_hand() -> None:
    """Every other element: the corners; in the middle column the padding above and below counts for the average."""
    run = run_operator(Pool(stride=1, dilation=2), [IMAGE], output_gradient=[[[[3]]]])
    np.testing.assert_array_equal(run.outputs[0], [[[[9]]]])
    np.testing.assert_array_equal(run.input_gradients[0], [[[[0, 0, 0], [0, 0, 0], [0, 0, 3]]]])
    layer = Pool(method="average", stride=1, dilation=2, padding=((1, 0), (0, 0)))
    np.testing.assert_array_equal(run_operator(layer, [IMAGE]).outputs[0], [[[[4 / 4], [19 / 4]]]])
    layer = Pool(method="average", stride=1, dilation=2, padding=((1, 0), (0, 0)), count_padding=False)
    np.testing.assert_array_equal(run_operator(layer, [IMAGE]).outputs[0], [[[[4 / 2], [19 / 4]]]])


def test_a_window_on_padding_alone_has_the_average_of_padding() -> None:
    run = run_operator(Pool(method="average", dilation=2, padding=1), [[[[5.0]]]], output_gradient=[[[1]]])
    assert run.outputs[0].tolist() == run.input_gradients[0].tolist() == [[[0]]]


def test_one_and_three_axes_are_like_two() -> None:
    """An image of one row, and a stack of one image."""
    x = np.random.default_rng(0).standard_normal((2, 3, 9))
    for method in ("max", "average", "stochastic"):
        line, image, volume = (
            Pool(method=method, kernel_size=(*ones, 3), stride=2, padding=(*zeros, (1, 0)), dilation=(*ones, 2))
            for ones, zeros in (((), ()), ((1,), ((0, 0),)), ((1, 1), ((0, 0), (0, 0))))
        )
        expected = run_operator(line, [x])
        for layer, shape in ((image, (2, 3, 1, 9)), (volume, (2, 3, 1, 1, 9))):
            run = run_operator(layer, [x.reshape(shape)])
            np.testing.assert_array_equal(run.outputs[0].ravel(), expected.outputs[0].ravel())
            np.testing.assert_array_equal(run.input_gradients[0].ravel(), expected.input_gradients[0].ravel())


def test_check_phase_gives_the_same() -> None:
    np.testing.assert_array_equal(run_operator(Pool(), [IMAGE], phase=Phase.CHECK).outputs[0], [[[[5, 2], [7, 9]]]])


@pytest.mark.parametrize("method", ["max", "average", "stochastic"])
@pytest.mark.parametrize(
    "values",
    [
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 1), "rounding": "floor"},
        {"kernel_size": 2, "stride": 3, "padding": 1},
        {"global_pooling": True},
    ],
    ids=str,
)
def test_gradients(method: str, values: dict[str, Any]) -> None:
    more: list[dict[str, Any]] = [{}, {"count_padding": False}] if method == "average" and "padding" in values else [{}]
    for other in more:
        _check_gradients(Pool(method=method, **values, **other))


def _check_gradients(layer: Pool) -> None:
    assert layer.gradient() == PoolGradient()
    check_gradients(layer, [(2, 3, 6, 5)])


def test_a_huge_window_is_looked_at_in_no_time() -> None:
    pool = Pool(kernel_size=2**30, padding=2**29, stride=2**29)
    start = time.thread_time()
    assert pool.output_shape((1, 1, 8, 8)) == (1, 1, 2, 2)
    assert time.thread_time() - start < 1


@pytest.mark.parametrize("method", ["max", "average", "stochastic"])
def test_positions_outside_the_padded_input_cost_nothing(method: str) -> None:
    """A window of 2³¹ − 1 elements on each side does what one as large as the padded input does."""
    x = np.random.default_rng(0).uniform(0.5, 1, (2, 3, 4, 5))
    for more in ({}, {"padding": ((1, 0), (0, 2))}, {"dilation": 2}):
        huge = Pool(method=method, kernel_size=2**31 - 1, stride=2**32, **more)
        axes = zip(x.shape[2:], (1, 2) if "padding" in more else (0, 0), strict=True)
        sizes = tuple(-(-(size + padding) // more.get("dilation", 1)) for size, padding in axes)
        small, start = Pool(method=method, kernel_size=sizes, stride=2**32, **more), time.thread_time()
        run, expected = run_operator(huge, [x]), run_operator(small, [x])
        assert time.thread_time() - start < 5
        np.testing.assert_array_equal(run.outputs[0], expected.outputs[0])
        np.testing.assert_array_equal(run.input_gradients[0], expected.input_gradients[0])


@pytest.mark.parametrize("method", ["max", "average"])
@pytest.mark.parametrize("rounding", ["ceil", "floor"])
def test_a_huge_image_is_looked_at_in_no_time(method: str, rounding: str) -> None:
    pool = Pool(method=method, kernel_size=3, stride=1, padding=1, rounding=rounding, **_count(method))
    start = time.thread_time()
    assert pool.output_shape((1, 3, 2**31 - 1, 4)) == (1, 3, 2**31 - 1, 4)
    assert time.thread_time() - start < 1


def _count(method: str) -> dict[str, Any]:
    return {"count_padding": False} if method == "average" else {}


def test_windows_that_step_over_the_input_are_found() -> None:
    """Compared with all windows, element by element."""
    generator = np.random.default_rng(0)
    seen = set()
    for size, k, s, d, before, after in generator.integers([1, 1, 1, 1, 0, 0], [8, 4, 5, 9, 9, 9], (3000, 6)).tolist():
        windows = (size + before + after - (d * (k - 1) + 1)) // s + 1
        if windows < 1 or max(before, after) > d * (k - 1):
            continue  # refused for other reasons
        empty = any(
            not any(0 <= window * s - before + d * element < size for element in range(k)) for window in range(windows)
        )
        pool = Pool(kernel_size=(k,), stride=s, dilation=d, padding=((before, after),), rounding="floor")
        seen.add(empty)
        if empty:
            with pytest.raises(ValueError, match="an element in every window"):
                pool.output_shape((1, 1, size))
        else:
            assert pool.output_shape((1, 1, size)) == (1, 1, windows)
    assert seen == {False, True}
