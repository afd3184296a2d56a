from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels import why_not_compiled
from crossbow.ops import Gaussian, LayerNorm, LayerNormGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
DEVICES = pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])


def test_numbers_by_hand() -> None:
    """The mean is 2, and the variance 8 / 3 for the first example; the second is constant."""
    x, dy = np.array([[0.0, 2, 4], [5, 5, 5]]), np.array([[1.0, 0, 0], [0, 0, 0]])
    variables = {"weights": np.array([1.0, 2, 3]), "bias": np.array([0.5, 0, 0])}
    kernel = LayerNorm(epsilon=1 / 3)
    run = run_operator(kernel, [x], variables=variables, output_gradient=dy, dtype=np.float64)
    far = 2 / np.sqrt(3)
    np.testing.assert_allclose(run.outputs[0], [[0.5 - far, 0, 3 * far], [0.5, 0, 0]], rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(run.variable_gradients["weights"], [-far, 0, 0], rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(run.variable_gradients["bias"], [1, 0, 0])
    first = (np.array([1, 0, 0]) - 1 / 3 - np.array([-far, 0, far]) * (-far / 3)) / np.sqrt(3)
    np.testing.assert_allclose(run.input_gradients[0], [first, [0, 0, 0]], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    "values", [{}, {"axis": 1}, {"axis": -2, "number_of_axes": 2, "bias": False}, {"axis": 1, "number_of_axes": 3}]
)
def test_gradients(values: dict[str, Any]) -> None:
    kernel = LayerNorm(weight_initialiser=Gaussian(mean=1.0, std=0.5), **values)
    assert kernel.gradient() == LayerNormGradient()
    check_gradients(kernel, [(3, 4, 2, 5)])


@DEVICES
def test_far_from_zero_the_variance_keeps_its_digits(device: str) -> None:
    """The mean of the squares less the square of the mean would be 0."""
    x = (1e4 + np.random.default_rng(0).standard_normal((4, 4099))).astype(np.float32)
    (y,) = run_operator(LayerNorm(), [x], device=device).outputs
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(axis=1, keepdims=True)) / np.sqrt(exact.var(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, exact, rtol=1e-6, atol=1e-7)


@DEVICES
def test_an_example_does_not_depend_on_the_others(device: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 3, 64)).astype(np.float32)
    (together,) = run_operator(LayerNorm(), [x], device=device).outputs
    for number in range(5):
        (alone,) = run_operator(LayerNorm(), [x[number : number + 1]], device=device).outputs
        np.testing.assert_array_equal(alone[0], together[number])


def test_it_is_frozen_without_a_learning_rate() -> None:
    assert LayerNorm(weight_learning_rate_multiplier=0, bias_learning_rate_multiplier=0).is_frozen
    assert LayerNorm(weight_learning_rate_multiplier=0, bias=False).is_frozen
    assert not LayerNorm(weight_learning_rate_multiplier=0).is_frozen


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"axis": 0}, "axis must be an integer other than 0, the axis of the examples"),
        ({"number_of_axes": 0}, "number_of_axes must be an integer ≥ 1"),
        ({"epsilon": 0.0}, "epsilon must be a finite number > 0"),
        ({"bias": False, "bias_initialiser": Gaussian(std=0.5)}, "bias_initialiser must be left at"),
    ],
)
def test_bad_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LayerNorm(**values)


@pytest.mark.parametrize("shape", [(3,), (3, 4)])
def test_axes_that_the_input_does_not_have(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected an input with number_of_axes=2 from axis=-2 on.*Received: \(3,"):
        LayerNorm(axis=-2, number_of_axes=2).output_shape(shape)


def test_nothing_to_normalise() -> None:
    with pytest.raises(ValueError, match=r"expected at least one element to normalise\. Received: \(2, 3, 0\)"):
        LayerNorm().output_shape((2, 3, 0))
