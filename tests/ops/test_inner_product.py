from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels import why_not_compiled
from crossbow.ops import Constant, Gaussian, InnerProduct, InnerProductGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")


def test_shapes_and_variables() -> None:
    layer = InnerProduct(number_of_outputs=10, weight_initialiser=Gaussian(std=0.1))
    assert layer.output_shape((8, 64)) == (8, 10)
    assert layer.output_shape((8, 3, 4, 5)) == (8, 10)
    weights, bias = layer.variables((8, 3, 4, 5))
    assert (weights.shape, weights.initialiser, bias.shape) == ((10, 60), Gaussian(std=0.1), (10,))
    assert len(InnerProduct(number_of_outputs=10, bias=False).variables((8, 5))) == 1


@pytest.mark.parametrize(
    ("axis", "output", "features"),
    [(1, (8, 10), 60), (2, (8, 3, 10), 20), (3, (8, 3, 4, 10), 5), (-1, (8, 3, 4, 10), 5), (-3, (8, 10), 60)],
)
def test_dimensions_before_the_axis_stay(axis: int, output: tuple[int, ...], features: int) -> None:
    layer = InnerProduct(number_of_outputs=10, axis=axis)
    assert layer.output_shape((8, 3, 4, 5)) == output
    assert layer.variables((8, 3, 4, 5))[0].shape == (10, features)


@pytest.mark.parametrize("axis", [2, -2])
def test_an_axis_that_is_not_there(axis: int) -> None:
    with pytest.raises(ValueError, match=rf"of shape \(N, …\) that has an axis={axis}\. Received: \(8, 3\)"):
        InnerProduct(number_of_outputs=10, axis=axis).output_shape((8, 3))


def test_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"expected an input of shape \(N, features\).*Received: \(8,\)"):
        InnerProduct(number_of_outputs=10).output_shape((8,))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "InnerProduct needs number_of_outputs"),
        ({"number_of_outputs": 1.5}, "number_of_outputs must be an integer ≥ 1"),
        ({"number_of_outputs": 1, "axis": 0}, "axis must be an integer ≥ 1, or ≤ −1 to count from the end"),
        ({"number_of_outputs": 1, "axis": 1.0}, "axis must be an integer ≥ 1"),
        ({"number_of_outputs": 1, "bias": 0}, "bias must be True or False"),
        (
            {"number_of_outputs": 1, "bias": False, "bias_learning_rate_multiplier": 3},
            "bias_learning_rate_multiplier must be left at 1.0 with bias=False, where it does nothing. Received: bias_",
        ),
        (
            {"number_of_outputs": 1, "bias": False, "bias_initialiser": Constant(1.0)},
            "bias_initialiser must be left at",
        ),
    ],
)
def test_bad_configurations(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        InnerProduct(**values)  # type: ignore[arg-type]


def test_numbers_by_hand() -> None:
    run = run_operator(
        InnerProduct(number_of_outputs=2),
        [np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])],
        variables={"weights": np.array([[1.0, 0.0, -1.0], [2.0, 1.0, 0.0]]), "bias": np.array([10.0, 20.0])},
        output_gradient=np.array([[1.0, 0.0], [0.0, 2.0]]),
    )
    np.testing.assert_array_equal(run.outputs[0], [[8, 24], [8, 33]])
    np.testing.assert_array_equal(run.variable_gradients["weights"], [[1, 2, 3], [8, 10, 12]])
    np.testing.assert_array_equal(run.variable_gradients["bias"], [1, 2])
    np.testing.assert_array_equal(run.input_gradients[0], [[1, 0, -1], [4, 2, 0]])


def test_features_of_an_image_are_ordered_channel_row_column() -> None:
    x = np.arange(12.0).reshape(1, 2, 3, 2)
    weights = np.arange(12.0).reshape(1, 12)
    run = run_operator(InnerProduct(number_of_outputs=1, bias=False), [x], variables={"weights": weights})
    assert run.outputs[0].item() == sum(i * i for i in range(12))
    np.testing.assert_array_equal(run.input_gradients[0], x)


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize("axis", [2, 3])
def test_with_an_axis_every_row_is_one_product(axis: int, device: str) -> None:
    generator = np.random.default_rng(0)
    layer = InnerProduct(number_of_outputs=6, axis=axis, bias=False)
    x = generator.integers(-3, 4, (2, 3, 4, 5)).astype(np.float32)
    weights = generator.integers(-3, 4, layer.variables(x.shape)[0].shape).astype(np.float32)
    dy = generator.integers(-3, 4, layer.output_shape(x.shape)).astype(np.float32)
    run = run_operator(layer, [x], output_gradient=dy, variables={"weights": weights}, device=device)
    rows, gradients = x.reshape(-1, weights.shape[1]), dy.reshape(-1, 6)
    np.testing.assert_array_equal(run.outputs[0].reshape(-1, 6), [weights @ row for row in rows])
    np.testing.assert_array_equal(run.input_gradients[0], (gradients @ weights).reshape(x.shape))
    np.testing.assert_array_equal(run.variable_gradients["weights"], gradients.T @ rows)


def test_gradients() -> None:
    assert InnerProduct(number_of_outputs=1).gradient() == InnerProductGradient()
    check_gradients(InnerProduct(number_of_outputs=3), [(4, 2, 3, 2)])
    check_gradients(InnerProduct(number_of_outputs=3, bias=False), [(4, 5)])
