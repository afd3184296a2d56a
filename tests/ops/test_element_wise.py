from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels import why_not_compiled
from crossbow.ops import ElementWiseOp, ElementWiseOpGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
devices = pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
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


@pytest.mark.parametrize(
    "operator",
    [ElementWiseOp(coefficients=(1, -2, 0.5)), ElementWiseOp(type="product"), ElementWiseOp(type="max")],
    ids=str,
)
def test_gradients(operator: ElementWiseOp) -> None:
    assert operator.gradient(2) == ElementWiseOpGradient(input=2)
    check_gradients(operator, [(2, 3, 2, 2)] * 3)


@devices
def test_product_by_hand_with_zeros(device: str) -> None:
    """The gradient of an input that is 0, alone or with others, is the product of the others."""
    inputs = [np.array([[2.0, 0.0, 0.0]]), np.array([[3.0, 5.0, 0.0]]), np.array([[-4.0, 7.0, 6.0]])]
    run = run_operator(
        ElementWiseOp(type="product"), inputs, output_gradient=np.array([[10.0, 1.0, 1.0]]), device=device
    )
    np.testing.assert_array_equal(run.outputs[0], [[-24, 0, 0]])
    for gradient, expected in zip(run.input_gradients, ([-120, 35, 0], [-80, 0, 0], [60, 0, 0]), strict=True):
        np.testing.assert_array_equal(gradient, [expected])


@devices
def test_of_equal_largest_inputs_the_first_has_the_gradient(device: str) -> None:
    inputs = [np.array([[1.0, 3.0, 2.0, -0.0]]), np.array([[2.0, 3.0, 1.0, 0.0]]), np.array([[2.0, 3.0, 0.0, -1.0]])]
    dy = np.array([[1.0, 2.0, 3.0, 4.0]])
    run = run_operator(ElementWiseOp(type="max"), inputs, output_gradient=dy, device=device)
    np.testing.assert_array_equal(run.outputs[0], [[2, 3, 2, 0]])
    for gradient, expected in zip(run.input_gradients, ([0, 2, 3, 4], [1, 0, 0, 0], [0, 0, 0, 0]), strict=True):
        np.testing.assert_array_equal(gradient, [expected])


@devices
@pytest.mark.parametrize("type", ["sum", "product", "max"])
def test_of_one_input_is_that_input(type: str, device: str) -> None:
    run = run_operator(ElementWiseOp(type=type), [A], output_gradient=B, device=device)
    np.testing.assert_array_equal(run.outputs[0], A)
    np.testing.assert_array_equal(run.input_gradients[0], B)


@pytest.mark.slow
@devices
def test_the_largest_of_256_inputs(device: str) -> None:
    operator, inputs = ElementWiseOp(type="max"), [np.array([[float(number)]]) for number in range(256)]
    gradients = run_operator(operator, inputs, device=device).input_gradients
    assert [float(gradient[0, 0]) for gradient in gradients] == [0.0] * 255 + [1.0]
    assert operator.output_shape(*[(1, 1)] * 256) == (1, 1)
    for kind in ("sum", "product"):
        assert ElementWiseOp(type=kind).output_shape(*[(2, 3)] * 257) == (2, 3)
    with pytest.raises(ValueError, match=r"at most 256 inputs with type='max'\. Received: 257 inputs"):
        operator.output_shape(*[(1, 1)] * 257)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"type": "product", "coefficients": (1, 2)},
            r"coefficients must be None with type='product'. Received: coefficients=\(1, 2\)",
        ),
        ({"type": "max", "coefficients": (1.0,)}, "coefficients must be None with type='max'"),
        ({"type": "mean"}, "type must be one of 'sum', 'product', 'max'"),
        ({"coefficients": ()}, "coefficients must be finite numbers"),
        ({"coefficients": 2}, "coefficients must be finite numbers"),
        ({"coefficients": (1, float("inf"))}, "coefficients must be finite numbers"),
    ],
)
def test_bad_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ElementWiseOp(**values)
