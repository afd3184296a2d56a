"""Sums, products, maxima and minima, and constants that become the variables of a Scale."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import GraphError
from crossbow.onnx import load
from crossbow.ops import Broadcast, ElementWiseOp
from tests.onnx.models import X, constant, draw, kernel_of, model, node, operators, run_crossbow, same


def test_the_smallest_of_several_inputs_and_the_index_of_the_smallest() -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Tanh", "x", "b"),
        node("Min", "a b x", "m", "least"),
        node("ArgMin", "m", "i", axis=1),
        node("Cast", "i", "y", to=1),
    ]
    same(model(nodes, ["N", 2, 6, 6]))


def test_a_factor_and_a_term_for_every_channel_are_one_scale() -> None:
    nodes = [node("Mul", "x f", "m", "scale"), node("Add", "m b", "y", "shift")]
    network = same(model(nodes, ["N", 2, 6, 6], f=draw(2, 1, 1), b=draw(1, 2, 1, 1)))
    assert operators(network) == [("scale", "Scale")]
    kernel = kernel_of(network, "scale")
    assert (kernel.axis, kernel.number_of_axes, kernel.bias) == (1, 1, True)
    assert (kernel.weight_learning_rate_multiplier, kernel.bias_learning_rate_multiplier) == (1, 1)


def test_numbers_of_the_model_do_not_train() -> None:
    nodes = [
        constant("mean", np.reshape([0.5, 0.25], (1, 2, 1, 1))),
        node("Sub", "x mean", "a", "centre"),
        constant("std", np.reshape([2.0, 4.0], (2, 1, 1))),
        node("Div", "a std", "b", "divide"),
        constant("half", 0.5),
        node("Mul", "b half", "c", "half_of"),
        node("Sub", "half c", "y", "rest"),
    ]
    network = same(model(nodes, ["N", 2, 6, 6]))
    kinds = ["Scale", "Scale", "ElementWiseOp", "Scale"]
    assert operators(network) == list(zip(["centre", "divide", "half_of", "rest"], kinds, strict=True))
    for name in ("centre", "divide", "rest"):
        assert kernel_of(network, name).weight_learning_rate_multiplier == 0
    assert kernel_of(network, "rest").bias_learning_rate_multiplier == 0
    assert kernel_of(network, "half_of") == ElementWiseOp(coefficients=(0.5,))


def test_a_number_and_a_parameter_stay_apart() -> None:
    nodes = [
        constant("f", np.reshape([2.0, 3.0], (2, 1, 1))),
        node("Mul", "x f", "m", "fix"),
        node("Add", "m b", "y", "learn"),
    ]
    network = same(model(nodes, ["N", 2, 6, 6], b=draw(2, 1, 1)))
    assert operators(network) == [("fix", "Scale"), ("learn", "Scale")]
    assert kernel_of(network, "fix").weight_learning_rate_multiplier == 0
    assert kernel_of(network, "learn").bias_learning_rate_multiplier == 1


@pytest.mark.parametrize("op_type", ["Mul", "MatMul"])
def test_a_bias_in_another_type_is_named_once(op_type: str) -> None:
    nodes = [node(op_type, "x w", "p", "it"), node("Add", "p b", "y", "bias")]
    given = {"w": draw(6, 6) if op_type == "MatMul" else draw(6), "b": draw(6).astype(np.float16)}
    with pytest.raises(GraphError) as caught:
        load(model(nodes, ["N", 6], **given))
    assert caught.value.faults == ("node 'bias' (Add): expected weights in float32 or float64. Received: float16",)


def test_before_opset_7_an_axis_says_where_factor_and_term_begin() -> None:
    nodes = [
        node("Mul", "x f", "m", "scale", broadcast=1, axis=1),
        node("Add", "m b", "y", "shift", broadcast=1, axis=1),
    ]
    factor, term = draw(2), draw(2, seed=1)
    network = load(model(nodes, ["N", 2, 6, 6], opset=6, f=factor, b=term))
    assert operators(network) == [("scale", "Scale")]
    expected = X * factor.reshape(2, 1, 1) + term.reshape(2, 1, 1)
    np.testing.assert_allclose(run_crossbow(network, X), expected, rtol=1e-5, atol=1e-6)


def test_an_initializer_that_is_added_trains() -> None:
    kernel = kernel_of(same(model([node("Add", "x b", "y", "add")], ["N", 2, 6, 6], b=draw(2, 6, 1))), "add")
    assert (kernel.axis, kernel.number_of_axes) == (1, 2)
    assert (kernel.weight_learning_rate_multiplier, kernel.bias_learning_rate_multiplier) == (0, 1)


@pytest.mark.parametrize("shape", [(3, 1, 1, 1), (1, 2, 2, 6, 6), (7,)])
def test_constants_that_differ_between_examples_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match=r"'add' \(Add\): expected a constant that is"):
        load(model([node("Add", "x b", "y", "add")], [3, 2, 6, 6], b=draw(*shape)))


def test_a_weight_for_every_channel_of_every_example() -> None:
    """Squeeze and excitation."""
    nodes = [
        node("GlobalAveragePool", "x", "g", "squeeze"),
        node("Sigmoid", "g", "s", "excite"),
        node("Mul", "x s", "y", "weigh"),
    ]
    network = same(model(nodes, ["N", 2, 6, 6]))
    assert kernel_of(network, "weigh.input1") == Broadcast(shape=(2, 6, 6))
    assert kernel_of(network, "weigh") == ElementWiseOp(type="product")


@pytest.mark.parametrize("op_type", ["Sum", "Max", "Min", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_inputs(op_type: str, count: int) -> None:
    nodes = [node("Relu", "x", "a"), node("Tanh", "x", "b"), node(op_type, " ".join("xab"[:count]), "y")]
    same(model(nodes, ["N", 2, 6, 6]))
