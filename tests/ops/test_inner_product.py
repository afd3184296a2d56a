from __future__ import annotations

import numpy as np
import pytest

from crossbow.ops import Gaussian, InnerProduct, InnerProductGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError


def test_shapes_and_variables() -> None:
    layer = InnerProduct(number_of_outputs=10, weight_initialiser=Gaussian(std=0.1))
    assert layer.output_shape((8, 64)) == (8, 10)
    assert layer.output_shape((8, 3, 4, 5)) == (8, 10)
    weights, bias = layer.variables((8, 3, 4, 5))
    assert (weights.shape, weights.initialiser, bias.shape) == ((10, 60), Gaussian(std=0.1), (10,))
    assert len(InnerProduct(number_of_outputs=10, bias=False).variables((8, 5))) == 1


def test_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"expected an input of shape \(N, features\).*Received: \(8,\)"):
        InnerProduct(number_of_outputs=10).output_shape((8,))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "InnerProduct needs number_of_outputs"),
        ({"number_of_outputs": 1.5}, "number_of_outputs must be an integer ≥ 1"),
        ({"number_of_outputs": 1, "axis": 2}, "axis must be 1"),
        ({"number_of_outputs": 1, "bias": 0}, "bias must be True or False"),
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


def test_gradients() -> None:
    assert InnerProduct(number_of_outputs=1).gradient() == InnerProductGradient()
    check_gradients(InnerProduct(number_of_outputs=3), [(4, 2, 3, 2)])
    check_gradients(InnerProduct(number_of_outputs=3, bias=False), [(4, 5)])
