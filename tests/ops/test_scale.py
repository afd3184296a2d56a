from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.ops import Constant, Gaussian, Scale, ScaleGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, Phase, Shape

IMAGE: Shape = (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("layer", "variable"),
    [
        (Scale(), (3,)),
        (Scale(axis=2), (4,)),
        (Scale(axis=-1), (5,)),
        (Scale(axis=-3), (3,)),
        (Scale(number_of_axes=3), (3, 4, 5)),
        (Scale(axis=-2, number_of_axes=2), (4, 5)),
    ],
    ids=str,
)
def test_shapes(layer: Scale, variable: Shape) -> None:
    assert layer.output_shape(IMAGE) == IMAGE
    assert [(spec.name, spec.shape) for spec in layer.variables(IMAGE)] == [("weights", variable)]


def test_variables_without_a_configuration_change_nothing() -> None:
    x = np.random.default_rng(0).standard_normal(IMAGE)
    weights, bias = Scale(bias=True).variables(IMAGE)
    assert (weights.initialiser, bias.initialiser) == (Constant(1.0), Constant(0.0))
    np.testing.assert_array_equal(run_operator(Scale(bias=True), [x], dtype=np.float64).outputs[0], x)


def test_learning_rate_multipliers_go_with_their_variables() -> None:
    layer = Scale(bias=True, weight_learning_rate_multiplier=0.5, bias_learning_rate_multiplier=2.0)
    assert [spec.learning_rate_multiplier for spec in layer.variables(IMAGE)] == [0.5, 2.0]
    assert [spec.learning_rate_multiplier for spec in Scale(bias=True).variables(IMAGE)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (Scale(axis=4), IMAGE, r"number_of_axes=1 from axis=4 on.*Received: \(2, 3, 4, 5\)"),
        (Scale(axis=2, number_of_axes=3), IMAGE, "number_of_axes=3 from axis=2 on"),
        (Scale(axis=-4), IMAGE, "excluding the axis of the examples"),
        (Scale(axis=-5), IMAGE, "from axis=-5 on"),
        (Scale(), (3,), r"Received: \(3,\)"),
    ],
    ids=str,
)
def test_wrong_shapes(layer: Scale, x: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer.output_shape(x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"axis": 0}, "axis must be an integer other than 0, the axis of the examples. Received: axis=0"),
        ({"axis": 1.0}, "axis must be an integer"),
        ({"number_of_axes": 0}, "number_of_axes must be an integer ≥ 1"),
        ({"bias": 1}, "bias must be True or False"),
        (
            {"bias_learning_rate_multiplier": 3},
            "bias_learning_rate_multiplier must be left at 1.0 with bias=False, where it does nothing. Received: bias_",
        ),
        ({"bias_initialiser": Constant(1.0)}, "bias_initialiser must be left at"),
        ({"weight_learning_rate_multiplier": -1}, "weight_learning_rate_multiplier must be a finite number ≥ 0"),
        ({"bias_learning_rate_multiplier": None}, "bias_learning_rate_multiplier must be a finite number ≥ 0"),
    ],
)
def test_bad_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Scale(**values)


def test_per_channel_by_hand() -> None:
    x, dy = np.array([[[[1.0, 2.0]], [[3.0, 4.0]]]]), np.array([[[[1.0, 10.0]], [[100.0, 1000.0]]]])
    variables = {"weights": np.array([2.0, -1.0]), "bias": np.array([0.5, 0.25])}
    run = run_operator(Scale(bias=True), [x], output_gradient=dy, variables=variables, dtype=np.float64)
    np.testing.assert_array_equal(run.outputs[0], [[[[2.5, 4.5]], [[-2.75, -3.75]]]])
    np.testing.assert_array_equal(run.input_gradients[0], [[[[2, 20]], [[-100, -1000]]]])
    np.testing.assert_array_equal(run.variable_gradients["weights"], [1 * 1 + 2 * 10, 3 * 100 + 4 * 1000])
    np.testing.assert_array_equal(run.variable_gradients["bias"], [11, 1100])


def test_per_row_by_hand() -> None:
    x, weights = np.array([[[[1.0, 2.0], [3.0, 4.0]]]]), np.array([10.0, 100.0])
    run = run_operator(Scale(axis=2), [x], variables={"weights": weights}, dtype=np.float64)
    np.testing.assert_array_equal(run.outputs[0], [[[[10, 20], [300, 400]]]])
    np.testing.assert_array_equal(run.variable_gradients["weights"], [3, 7])
    assert run.variable_gradients.keys() == {"weights"}


def test_check_phase_gives_the_same() -> None:
    x, layer = np.random.default_rng(0).standard_normal(IMAGE), Scale(weight_initialiser=Gaussian(std=1.0))
    training, checking = (run_operator(layer, [x], phase=phase).outputs[0] for phase in Phase)
    np.testing.assert_array_equal(training, checking)


@pytest.mark.parametrize("values", [{}, {"bias": True}, {"axis": 2, "number_of_axes": 2, "bias": True}], ids=str)
def test_gradients(values: dict[str, Any]) -> None:
    assert Scale(**values).gradient() == ScaleGradient()
    check_gradients(Scale(**values), [IMAGE])
