from __future__ import annotations

import numpy as np
import pytest

from crossbow import ConfigurationError
from crossbow.ops import Upsample, UpsampleGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import Shape


@pytest.mark.parametrize(
    ("kernel", "x", "y"),
    [
        (Upsample(2), (2, 3, 4, 5), (2, 3, 8, 10)),
        (Upsample((2, 1.5)), (2, 3, 4, 5), (2, 3, 8, 7)),
        (Upsample(0.5), (2, 3, 9), (2, 3, 4)),
        (Upsample(size=7), (2, 3, 4, 5), (2, 3, 7, 7)),
        (Upsample(size=(3, 4, 5), method="linear"), (2, 3, 2, 2, 2), (2, 3, 3, 4, 5)),
    ],
)
def test_shapes(kernel: Upsample, x: Shape, y: Shape) -> None:
    assert kernel.output_shape(x) == y
    assert kernel.gradient() == UpsampleGradient()


def test_repetition_by_hand() -> None:
    assert Upsample() == Upsample(2)
    run = run_operator(Upsample(2), [[[[1.0, 2.0]]]], output_gradient=[[[1.0, 10.0, 100.0, 1000.0]]])
    np.testing.assert_array_equal(run.outputs[0], [[[1, 1, 2, 2]]])
    np.testing.assert_array_equal(run.input_gradients[0], [[[11, 1100]]])


def test_interpolation_by_hand() -> None:
    """Positions −¼ (so 0), ¼, ¾ and 1¼ (so 1): the value before the first and after the last are repeated."""
    kernel = Upsample(2, method="linear")
    run = run_operator(kernel, [[[[4.0, 8.0]]]], output_gradient=[[[1.0, 10.0, 100.0, 1000.0]]])
    np.testing.assert_array_equal(run.outputs[0], [[[4, 5, 7, 8]]])
    np.testing.assert_array_equal(run.input_gradients[0], [[[1 + 7.5 + 25, 2.5 + 75 + 1000]]])


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_positions_of_repetition_are_exact(device: str) -> None:
    """⌊i · H / H'⌋ in whole numbers, and ⌊10 i / 37⌋ for a scale of 3.7."""
    for size, target in ((2, 82), (6, 14), (49, 98), (11, 77), (7, 5)):
        x = np.arange(size, dtype=np.float32).reshape(1, 1, -1)
        y = run_operator(Upsample(size=target), [x], device=device).outputs[0]
        assert y.reshape(-1).tolist() == [i * size // target for i in range(target)]
    x = np.arange(30, dtype=np.float32).reshape(1, 1, -1)
    y = run_operator(Upsample(3.7), [x], device=device).outputs[0]
    assert y.reshape(-1).tolist() == [i * 10 // 37 for i in range(111)]


def test_aligned_corners_by_hand() -> None:
    """Positions 0, ½, 1, 1½ and 2."""
    run = run_operator(Upsample(size=5, method="linear", align_corners=True), [[[[4.0, 8.0, 0.0]]]])
    np.testing.assert_array_equal(run.outputs[0], [[[4, 6, 8, 4, 0]]])


def test_every_axis_has_its_own_factor() -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    (y,) = run_operator(Upsample((2, 3)), [x]).outputs
    np.testing.assert_array_equal(y, x.repeat(2, axis=2).repeat(3, axis=3))
    (y,) = run_operator(Upsample((1, 2), method="linear"), [[[[[4.0, 8.0], [0.0, 4.0]]]]]).outputs
    np.testing.assert_array_equal(y, [[[[4, 5, 7, 8], [0, 1, 3, 4]]]])


def test_a_single_output_is_the_first_corner() -> None:
    run = run_operator(Upsample(size=1, method="linear", align_corners=True), [[[[4.0, 8.0, 0.0]]]])
    np.testing.assert_array_equal(run.outputs[0], [[[4]]])


def test_a_value_that_is_not_finite_stays_where_it_is() -> None:
    x = np.array([[[1.0, np.inf, 2.0, 3.0]]], np.float32)
    for device in ("reference", "cpu"):
        y = run_operator(Upsample(2, method="linear"), [x], device=device).outputs[0]
        assert np.isfinite(y).tolist() == [[[True, False, False, False, False, True, True, True]]]


@pytest.mark.parametrize("shape", [(2, 3, 3, 4), (2, 3, 5), (1, 2, 2, 3, 2)])
@pytest.mark.parametrize(
    "kernel",
    [Upsample(2), Upsample(1.5, method="linear"), Upsample(size=4, method="linear", align_corners=True)],
    ids=str,
)
def test_gradients(kernel: Upsample, shape: Shape) -> None:
    check_gradients(kernel, [shape])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale": 2, "size": 4}, r"scale must be None with size=4\. Received: scale=2"),
        ({"scale": 0}, "scale must be a number > 0 or a tuple of such, one per spatial axis"),
        ({"scale": (1, 2, 3, 4)}, "scale must be a number or a tuple, one per spatial axis"),
        ({"size": 2.5}, "size must be an integer ≥ 1 or a tuple of such"),
        ({"size": 0}, "size must be an integer ≥ 1 or a tuple of such, one per spatial axis"),
        ({"size": (2, 0)}, "size must be an integer ≥ 1 or a tuple of such"),
        ({"size": (1, 2, 3, 4)}, "size must be a number or a tuple, one per spatial axis"),
        ({"size": ()}, "size must be a number or a tuple"),
        ({"scale": (2, float("nan"))}, "scale must be a number > 0 or a tuple of such"),
        ({"scale": "2"}, "scale must be a number > 0"),
        ({"scale": 2, "method": "cubic"}, "method must be one of 'nearest', 'linear'"),
        ({"scale": 2, "align_corners": True}, "align_corners must be left at False with method='nearest'"),
    ],
)
def test_bad_configurations(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Upsample(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernel", "x", "message"),
    [
        (Upsample(2), (2, 3), r"\(N, C, D, H, W\)\. Received: \(2, 3\)"),
        (Upsample(2), (2, 3, 0), r"Received: \(2, 3, 0\)"),
        (Upsample((2, 3)), (2, 3, 4), r"2 spatial axes, for scale=\(2, 3\)\. Received: \(2, 3, 4\)"),
        (Upsample(size=(2, 3)), (2, 3, 4), r"2 spatial axes, for size=\(2, 3\)"),
        (Upsample(0.2), (2, 3, 4), r"a scale that leaves an output\. Received: scale=0\.2"),
    ],
)
def test_wrong_shapes(kernel: Upsample, x: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel.output_shape(x)
