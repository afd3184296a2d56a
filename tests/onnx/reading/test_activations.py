"""ONNX activation functions, as Crossbow's operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from crossbow import GraphError
from crossbow.onnx import load
from crossbow.ops import GELU, PReLU, SiLU, Values
from tests.onnx.models import X, kernel_of, model, node, operators, run_crossbow, same


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("Abs", ["ElementWiseOp", "ElementWiseOp"]),
        ("HardSigmoid", ["Scale", "ReLU"]),
        ("HardSwish", ["HardSwish"]),
    ],
)
def test_activation_functions_of_several_operators(op_type: str, expected: list[str]) -> None:
    network = same(model([node(op_type, "x", "y", "it")], ["N", 2, 6, 6]), 4 * X)
    kinds = [kind for name, kind in operators(network) if name != "x"]
    assert kinds == expected
    assert network.tail.operator.name == "it"
    if "Scale" in kinds:
        line = kernel_of(network, "it.line")
        assert (line.weight_learning_rate_multiplier, line.bias_learning_rate_multiplier) == (0, 0)


@pytest.mark.parametrize("opset", [6, 7, 16])
def test_a_slope_for_every_channel_trains(opset: int) -> None:
    slope = np.array([0.25, -0.5], np.float32)
    nodes = [node("PRelu", "x s", "y", "it")]
    proto = model(nodes, ["N", 2, 6, 6], opset=opset, s=slope if opset < 7 else slope.reshape(2, 1, 1))
    network = load(proto)
    np.testing.assert_allclose(run_crossbow(network, X), np.where(X < 0, slope.reshape(2, 1, 1) * X, X), rtol=1e-6)
    if opset > 6:  # which onnxruntime does not have
        same(proto)
    kernel = kernel_of(network, "it")
    assert kernel == PReLU(weight_initialiser=Values(slope))


def test_one_slope_for_all() -> None:
    for slope in (np.array([0.1], np.float32), np.full((1, 1, 1), -0.1, np.float32)):
        proto = model([node("PRelu", "x s", "y", "it")], ["N", 2, 6, 6], s=slope)
        assert kernel_of(same(proto), "it") == PReLU(shared=True, weight_initialiser=Values(slope.reshape(1)))


def test_a_slope_for_every_place_is_a_scale() -> None:
    slopes = np.linspace(-1, 1, 36, dtype=np.float32).reshape(1, 6, 6)
    network = same(model([node("PRelu", "x s", "y", "it")], ["N", 2, 6, 6], s=slopes))
    assert [kind for _, kind in operators(network)].count("Scale") == 1


def test_slopes_that_are_computed() -> None:
    nodes = [node("Sigmoid", "x", "s"), node("PRelu", "x s", "y", "it")]
    same(model(nodes, ["N", 2, 6, 6]))


def test_several_slopes_of_which_one_is_for_each_channel_are_not_one() -> None:
    slopes = np.array([0.25, 0.5], np.float32).reshape(2, 1, 1)
    same(model([node("PRelu", "x s", "y", "it")], ["N", 2, 6, 6], s=slopes))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_has_an_approximation(approximate: str) -> None:
    proto = model([node("Gelu", "x", "y", "it", approximate=approximate)], ["N", 2, 6, 6], opset=20)
    assert kernel_of(same(proto), "it") == GELU(approximate=approximate)


GELU_NODES = [
    node("Mul", "x r", "scaled"),
    node("Erf", "scaled", "e", "it"),
    node("Add", "e one", "total"),
    node("Mul", "x total", "product"),
    node("Mul", "product half", "y", "last"),
]


def of_error_function(nodes: list[onnx.NodeProto], **changed: float) -> onnx.ModelProto:
    """A model whose numbers are constants in the code, as in exported models."""
    numbers = {"r": 0.5**0.5, "one": 1.0, "half": 0.5} | changed
    constants = [onnx.helper.make_node("Constant", [], [name], value_float=value) for name, value in numbers.items()]
    return model([*constants, *nodes], ["N", 2, 6, 6])


def test_the_formula_with_an_error_function_is_a_gelu() -> None:
    network = same(of_error_function(GELU_NODES))
    assert kernel_of(network, "it") == GELU()
    swapped = [*GELU_NODES[:3], node("Mul", "total x", "product"), GELU_NODES[4]]
    assert kernel_of(same(of_error_function(swapped)), "it") == GELU()


@pytest.mark.parametrize(
    ("nodes", "changed"),
    [
        (GELU_NODES, {"r": 0.7}),
        (GELU_NODES, {"one": 2.0}),
        (GELU_NODES, {"half": 0.25}),
        ([*GELU_NODES[:3], node("Mul", "scaled total", "product"), GELU_NODES[4]], {}),
        ([*GELU_NODES[:2], node("Add", "e one", "y")], {}),
    ],
)
def test_other_error_functions_are_refused(nodes: list[onnx.NodeProto], changed: dict[str, float]) -> None:
    with pytest.raises(GraphError, match=r"'it' \(Erf\): expected the error function of a GELU.*Received: another use"):
        load(of_error_function(nodes, **changed))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("alpha", [1.0, 0.5, 1.702])
def test_swish_has_a_factor(alpha: float) -> None:
    """onnxruntime does not have it in this opset."""
    network = load(model([node("Swish", "x", "y", "it", alpha=alpha)], ["N", 2, 6, 6], opset=24))
    np.testing.assert_allclose(run_crossbow(network, X), X * sigmoid(alpha * X), rtol=1e-5, atol=1e-7)
    assert (kernel_of(network, "it") == SiLU()) == (alpha == 1)


@pytest.mark.parametrize("op_type", ["LeakyRelu", "HardSigmoid"])
def test_factors_of_an_activation_function(op_type: str) -> None:
    factors = {"alpha": 0.3} if op_type == "LeakyRelu" else {"alpha": 0.3, "beta": 0.4}
    same(model([node(op_type, "x", "y", "it", **factors)], ["N", 2, 6, 6]), 4 * X)
