from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.ops import ElementWiseOp, ElementWiseOpGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError

A, B, C = (np.array([[1.0, 2.0]]), np.array([[10.0, 20.0]]), np.array([[100.0, 200.0]]))


def test_shapes() -> None:
    assert ElementWiseOp().output_shape((2, 3), (2, 3), (2, 3)) == (2, 3)
    assert ElementWiseOp().output_shape((2, 3)) == (2, 3)
    with pytest.raises(ValueError, match=r"inputs of one shape. Received: \(2, 3\), \(3, 2\)"):
        ElementWiseOp().output_shape((2, 3), (3, 2))
    with pytest.raises(ValueError, match=r"one input for each of \(1.0, 2.0\). Received: 3 inputs"):
        ElementWiseOp(coefficients=(1, 2)).output_shape((2, 3), (2, 3), (2, 3))


def test_sum_by_hand() -> None:
    run = run_operator(ElementWiseOp(), [A, B, C], output_gradient=np.array([[3.0, 4.0]]))
    np.testing.assert_array_equal(run.outputs[0], [[111, 222]])
    for gradient in run.input_gradients:
        np.testing.assert_array_equal(gradient, [[3, 4]])


def test_every_input_has_its_own_coefficient() -> None:
    dy = np.array([[3.0, 4.0]])
    run = run_operator(ElementWiseOp(coefficients=(1, -2, 0.5)), [A, B, C], output_gradient=dy)
    np.testing.assert_array_equal(run.outputs[0], [[31, 62]])
    for coefficient, gradient in zip((1, -2, 0.5), run.input_gradients, strict=True):
        np.testing.assert_array_equal(gradient, coefficient * dy)


@pytest.mark.parametrize("in_place", [False, True])
def test_one_input(in_place: bool) -> None:
    run = run_operator(ElementWiseOp(coefficients=(3,)), [A], in_place=in_place)
    np.testing.assert_array_equal(run.outputs[0], 3 * A)


def test_in_place() -> None:
    run = run_operator(ElementWiseOp(coefficients=(2, 3)), [A, B], in_place=True)
    np.testing.assert_array_equal(run.outputs[0], 2 * A + 3 * B)


def test_gradients() -> None:
    assert ElementWiseOp().gradient(2) == ElementWiseOpGradient(input=2)
    check_gradients(ElementWiseOp(coefficients=(1, -2, 0.5)), [(2, 3, 2, 2)] * 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"type": "product"}, r"type must be 'sum' \('product' and 'max' do not exist yet\). Received: type='product'"),
        ({"type": "max"}, "type must be 'sum'"),
        ({"type": "mean"}, "type must be one of 'sum', 'product', 'max'"),
        ({"coefficients": ()}, "coefficients must be finite numbers"),
        ({"coefficients": 2}, "coefficients must be finite numbers"),
        ({"coefficients": (1, float("inf"))}, "coefficients must be finite numbers"),
    ],
)
def test_bad_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ElementWiseOp(**values)
