from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.ops import LRN, LRNGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, Phase, Shape


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 1, 2, 2)])
def test_shapes(shape: Shape) -> None:
    assert LRN().output_shape(shape) == shape
    assert LRN().variables(shape) == ()


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (LRN(), (3,), r"shape \(N, C\) or \(N, C, …\). Received: \(3,\)"),
        (LRN(region="within_channel"), (2, 3), r"\(N, C, H, W\) with region='within_channel'. Received: \(2, 3\)"),
        (LRN(region="within_channel"), (2, 3, 4), "with region='within_channel'"),
    ],
)
def test_wrong_shapes(layer: LRN, x: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer.output_shape(x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 0}, "size must be an integer ≥ 1. Received: size=0"),
        ({"size": 2.5}, "size must be an integer ≥ 1"),
        ({"alpha": -1}, "alpha must be a finite number ≥ 0"),
        ({"beta": float("nan")}, "beta must be a finite number ≥ 0"),
        ({"beta": -0.75}, "beta must be a finite number ≥ 0"),
        ({"kappa": 0}, "kappa must be a finite number > 0. Received: kappa=0"),
        ({"region": "across"}, "region must be one of 'across_channels', 'within_channel'. Received: region='across'"),
    ],
)
def test_bad_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LRN(**values)


@pytest.mark.parametrize(
    ("size", "sums"),
    [
        (1, [1, 4, 9, 16]),
        (2, [5, 13, 25, 16]),  # the element and the one behind it
        (3, [5, 14, 29, 25]),
        (4, [14, 30, 29, 25]),  # one before, two behind
        (5, [14, 30, 30, 29]),
        (99, [30, 30, 30, 30]),
    ],
)
def test_windows_across_channels_by_hand(size: int, sums: list[float]) -> None:
    """With β = 1, κ = 1 and α = size: y = x / (1 + Σ x²)."""
    x = np.array([[1.0, 2.0, 3.0, -4.0]])
    run = run_operator(LRN(size=size, alpha=size, beta=1.0), [x], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], x / (1 + np.array(sums)), rtol=1e-15)


@pytest.mark.parametrize(
    ("size", "sums"),
    [
        (1, [[1, 4], [9, 16], [25, 36]]),
        (2, [[30, 20], [86, 52], [61, 36]]),
        (3, [[30, 30], [91, 91], [86, 86]]),
    ],
)
def test_windows_within_a_channel_by_hand(size: int, sums: list[list[float]]) -> None:
    x = np.array([[[1.0, 2.0], [-3.0, 4.0], [5.0, 6.0]]])[np.newaxis]
    layer = LRN(size=size, alpha=size * size, beta=1.0, region="within_channel")
    # A second channel, which must not matter.
    run = run_operator(layer, [np.concatenate([x, 100 * x], axis=1)], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0][:, :1], x / (1 + np.array(sums)), rtol=1e-15)


def test_all_constants_by_hand() -> None:
    x = np.array([[2.0, 4.0]])
    run = run_operator(LRN(size=3, alpha=6.0, beta=0.5, kappa=9.0), [x], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], x / 7, rtol=1e-15)  # 9 + 6/3 · 20 = 49


def test_gradient_by_hand() -> None:
    """y_i = x_i / s with s = 1 + x_0² + x_1² of both: dx = dy / s − 2 x Σ dy · x / s²."""
    x, dy = np.array([[1.0, 2.0]]), np.array([[1.0, -3.0]])
    run = run_operator(LRN(size=3, alpha=3.0, beta=1.0), [x], output_gradient=dy, dtype=np.float64)
    np.testing.assert_allclose(run.input_gradients[0], dy / 6 - 2 * x * (1 - 6) / 36, rtol=1e-15)


def test_the_gradient_of_an_even_window_looks_the_other_way() -> None:
    """Element 1 counts for itself and for element 0, so a gradient of output 1 does not reach input 0."""
    x, dy = np.ones((1, 3)), np.array([[0.0, 1.0, 0.0]])
    run = run_operator(LRN(size=2), [x], output_gradient=dy, dtype=np.float64)
    assert (run.input_gradients[0] != 0).tolist() == [[False, True, True]]


def test_check_phase_gives_the_same() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4))
    training, checking = (run_operator(LRN(), [x], phase=phase).outputs[0] for phase in Phase)
    np.testing.assert_array_equal(training, checking)


@pytest.mark.parametrize("values", [{}, {"size": 4, "kappa": 2.0}, {"region": "within_channel", "size": 2}], ids=str)
def test_gradients(values: dict[str, Any]) -> None:
    assert LRN(**values).gradient() == LRNGradient()
    check_gradients(LRN(**values), [(2, 6, 3, 4)])


def test_an_even_window_is_longer_on_one_side() -> None:
    """As PyTorch's, or as ONNX's: the neighbour counts that is before, or the one behind."""
    x = np.array([[1.0, 2.0, 4.0]])
    for side, neighbours in (("before", [0, 1, 4]), ("after", [4, 16, 0])):
        (y,) = run_operator(LRN(size=2, alpha=2.0, beta=1.0, longer_side=side), [x], dtype=np.float64).outputs
        np.testing.assert_allclose(y[0], x[0] / (1 + x[0] ** 2 + neighbours))
    with pytest.raises(ConfigurationError, match="longer_side must be one of 'after', 'before'"):
        LRN(longer_side="left")
