"""ONNX operators, one or a few at a time, as ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import GraphError
from crossbow.onnx import load
from crossbow.ops import Broadcast, ElementWiseOp, ReLU, Values
from tests.onnx.models import X, constant, draw, kernel_of, model, node, operators, run_crossbow, same

# Forms


def test_a_reshape_that_flattens_and_one_that_does_nothing() -> None:
    nodes = [
        node("Reshape", "x same", "a"),
        node("Reshape", "a flat", "b", "flatten"),
        node("Reshape", "b last", "y"),
    ]
    shapes = {"same": [0, 2, -1, 6], "flat": [-1, 72], "last": [0, -1]}
    proto = model(nodes, ["N", 2, 6, 6], **{name: np.array(shape) for name, shape in shapes.items()})
    assert operators(same(proto)) == [("flatten", "Flatten")]


def test_a_reshape_to_the_shape_that_the_model_computes() -> None:
    """As PyTorch exports x.view(x.size(0), -1)."""
    nodes = [
        node("Relu", "x", "r", "relu"),
        node("Shape", "r", "s"),
        constant("zero", 0, np.int64),
        node("Gather", "s zero", "n", axis=0),
        constant("axes", [0], np.int64),
        node("Unsqueeze", "n axes", "n1"),
        constant("rest", [-1], np.int64),
        node("Concat", "n1 rest", "t", axis=0),
        node("Reshape", "r t", "y", "view"),
    ]
    assert operators(same(model(nodes, ["N", 2, 6, 6]))) == [("relu", "ReLU"), ("view", "Flatten")]


def test_a_fixed_batch_in_a_reshape() -> None:
    proto = model([node("Reshape", "x shape", "y", "view")], [3, 2, 6, 6], shape=np.array([3, 72]))
    assert operators(same(proto)) == [("view", "Flatten")]


@pytest.mark.parametrize("shape", [[-1, 6], [36, -1], [2, 108], [1, -1], [-1, 71]])
def test_a_reshape_that_mixes_examples_is_refused(shape: list[int]) -> None:
    with pytest.raises(
        GraphError, match=r"^node 'view' \(Reshape\): expected \(N, 2, 6, 6\) to keep its first dimension, and 72 elem"
    ):
        load(model([node("Reshape", "x shape", "y", "view")], ["N", 2, 6, 6], shape=np.array(shape)))


def test_dimensions_of_size_one_come_and_go() -> None:
    nodes = [
        node("GlobalAveragePool", "x", "g", "mean"),
        node("Squeeze", "g axes", "s", "squeeze"),
        node("Transpose", "t", "u", perm=[0, 1]),
        node("Relu", "u", "y", "relu"),
    ]
    nodes.insert(2, node("Identity", "s", "t", "same"))
    proto = model(nodes, ["N", 2, 6, 6], axes=np.array([2, -1]))
    assert [kind for _, kind in operators(same(proto))] == ["Pool", "Flatten", "Noop", "ReLU"]


@pytest.mark.parametrize("perm", [[1, 0, 2, 3], [3, 1, 2, 0], None])
def test_a_transpose_that_moves_the_examples_is_refused(perm: list[int] | None) -> None:
    attributes = {} if perm is None else {"perm": perm}
    with pytest.raises(GraphError, match=r"'turn' .* expected an order that begins with 0, the examples"):
        load(model([node("Transpose", "x", "y", "turn", **attributes)], ["N", 2, 6, 6]))


def test_the_batch_keeps_its_place_even_if_its_size_is_one() -> None:
    with pytest.raises(GraphError, match=r"'turn' .* expected an order that begins with 0, the examples"):
        load(model([node("Transpose", "x", "y", "turn", perm=[1, 0, 2])], [1, 1, 5]))


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_a_reduction_over_all_places_is_a_global_pooling(op_type: str, keepdims: int, opset: int) -> None:
    if opset < 18:
        proto = model([node(op_type, "x", "y", axes=[2, 3], keepdims=keepdims)], ["N", 2, 6, 6], opset=opset)
    else:
        nodes = [node(op_type, "x axes", "y", keepdims=keepdims)]
        proto = model(nodes, ["N", 2, 6, 6], opset=opset, axes=np.array([-1, 2]))
    kinds = [kind for _, kind in operators(same(proto))]
    assert kinds == ["Pool"] + ["Flatten"] * (1 - keepdims)


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceMax"])
def test_a_reduction_over_one_spatial_dimension_is_a_pooling(op_type: str) -> None:
    kernel = kernel_of(same(model([node(op_type, "x", "y", "it", axes=[3])], ["N", 2, 4, 6]), draw(3, 2, 4, 6)), "it")
    assert (kernel.kernel_size, kernel.stride) == ((1, 6), (1, 6))
    with pytest.raises(
        GraphError, match=r"'it' .* keepdims=1 if spatial dimensions are left. Received: keepdims=0, and \[3\] of"
    ):
        load(model([node(op_type, "x", "y", "it", axes=[3], keepdims=0)], ["N", 2, 4, 6]))
    with pytest.raises(GraphError, match=r"'it' .* after the channels. Received: \[1, 3\] of \(N, 2"):
        load(model([node(op_type, "x", "y", "it", axes=[1, 3])], ["N", 2, 4, 6]))


@pytest.mark.parametrize("opset", [10, 13, 18])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER"])
def test_zeros_around_the_input_of_a_convolution_are_its_padding(opset: int, auto_pad: str) -> None:
    """As TensorFlow's models have it."""
    own = {"pads": [0, 1, 1, 0]} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    convolution = node("Conv", "p w", "y", "conv", kernel_shape=[3, 3], strides=[2, 2], **own)
    given = {"w": draw(4, 2, 3, 3)}
    if opset < 11:
        padding = node("Pad", "x", "p", "pad", pads=[0, 0, 1, 0, 0, 0, 2, 3])
    elif opset < 18:
        padding = node("Pad", "x amount", "p", "pad")
        given["amount"] = np.array([0, 0, 1, 0, 0, 0, 2, 3])
    else:
        padding = node("Pad", "x amount - axes", "p", "pad")
        given |= {"amount": np.array([0, 1, 3, 2]), "axes": np.array([3, -2])}
    network = same(model([padding, convolution], ["N", 2, 6, 6], opset=opset, **given))
    assert operators(network) == [("conv", "Conv")]
    if auto_pad == "NOTSET":
        assert kernel_of(network, "conv").padding == ((1, 3), (1, 3))


def test_a_border_of_nothing_is_nothing() -> None:
    nodes = [node("Pad", "x amount", "p", "pad", mode="reflect"), node("Relu", "p", "y", "relu")]
    assert operators(same(model(nodes, ["N", 2, 6, 6], amount=np.zeros(8, np.int64)))) == [("relu", "ReLU")]


@pytest.mark.parametrize(
    ("amount", "value", "reader", "kinds"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], 1.5, "Conv", ["Pad", "Conv"]),
        ([0, 1, 1, 1, 0, 0, 1, 1], 0.0, "Conv", ["Pad", "Conv"]),
        ([0, 0, 1, 1, 0, 0, 1, 1], 0.0, "Relu", ["Pad", "ReLU"]),
        ([0, 0, 1, 1, 0, 0, 2, 0], 0.0, "Conv", ["Conv"]),  # in the convolution's own padding
    ],
)
def test_borders(amount: list[int], value: float, reader: str, kinds: list[str]) -> None:
    nodes = [
        node("Pad", "x amount value", "p", "pad"),
        node(reader, "p w" if reader == "Conv" else "p", "y"),
    ]
    given = {"amount": np.array(amount), "value": np.array(value, np.float32)}
    proto = model(nodes, ["N", 2, 6, 6], w=draw(4, 2 + amount[1], 3, 3), **given)
    assert [kind for _, kind in operators(same(proto))] == kinds


@pytest.mark.parametrize(
    ("amount", "mode"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], "reflect"),
        ([0, 0, -1, 1, 0, 0, 1, 1], "constant"),
        ([1, 0, 0, 0, 0, 0, 0, 0], "constant"),
    ],
)
def test_other_borders_are_refused(amount: list[int], mode: str) -> None:
    nodes = [node("Pad", "x amount", "p", "pad", mode=mode), node("Relu", "p", "y")]
    with pytest.raises(GraphError, match=f"^node 'pad' \\(Pad\\): expected a border of one value.*mode={mode}"):
        load(model(nodes, ["N", 2, 6, 6], amount=np.array(amount)))


def test_a_border_that_something_else_reads_too() -> None:
    nodes = [
        node("Pad", "x amount", "p", "pad"),
        node("Conv", "p w", "c", "conv", kernel_shape=[1, 1]),
        node("Add", "c p", "y", "add"),
    ]
    given = {"amount": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "w": draw(2, 2, 1, 1)}
    assert [kind for _, kind in operators(same(model(nodes, ["N", 2, 6, 6], **given)))] == [
        "Pad",
        "Conv",
        "ElementWiseOp",
    ]


CONVOLUTIONS = {
    "an attribute that is not known": {"bias": 1},
    "a kernel_shape that is not the weights'": {"kernel_shape": [2, 2]},
    "an operator that does not fit": {"group": 5},
}


@pytest.mark.parametrize("attributes", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_what_is_wrong_with_a_convolution_behind_a_border_is_named_once(attributes: dict[str, Any]) -> None:
    nodes = [
        node("Pad", "x amount", "p", "pad"),
        node("Conv", "p w", "c", "conv", **attributes),
        node("Clip", "c low", "y", "clip"),
    ]
    given = {"amount": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "w": draw(2, 2, 3, 3), "low": np.array(-1, np.float32)}
    with pytest.raises(GraphError) as caught:
        load(model(nodes, ["N", 2, 6, 6], **given))
    named = [fault.partition(":")[0] for fault in caught.value.faults]
    assert named == ["node 'conv' (Conv)", "node 'clip' (Clip)"]


# Compositions


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("Abs", ["ElementWiseOp", "ElementWiseOp"]),
        ("HardSigmoid", ["Scale", "ReLU"]),
        ("HardSwish", ["Scale", "ReLU", "ElementWiseOp"]),
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


def test_the_smallest_of_several_inputs_and_the_index_of_the_smallest() -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Tanh", "x", "b"),
        node("Min", "a b x", "m", "least"),
        node("ArgMin", "m", "i", axis=1),
        node("Cast", "i", "y", to=1),
    ]
    same(model(nodes, ["N", 2, 6, 6]))


@pytest.mark.parametrize("opset", [6, 7, 16])
def test_a_slope_for_every_channel_trains(opset: int) -> None:
    slope = np.array([0.25, -0.5], np.float32)
    nodes = [node("PRelu", "x s", "y", "it")]
    proto = model(nodes, ["N", 2, 6, 6], opset=opset, s=slope if opset < 7 else slope.reshape(2, 1, 1))
    network = load(proto)
    np.testing.assert_allclose(run_crossbow(network, X), np.where(X < 0, slope.reshape(2, 1, 1) * X, X), rtol=1e-6)
    if opset > 6:  # which onnxruntime does not have
        same(proto)
    kernel = kernel_of(network, "it.slope")
    assert kernel.weight_initialiser == Values(slope)
    assert kernel.weight_learning_rate_multiplier == 1


def test_one_slope_for_all_is_that_of_a_leaky_relu() -> None:
    proto = model([node("PRelu", "x s", "y", "it")], ["N", 2, 6, 6], s=np.array([0.1], np.float32))
    assert kernel_of(same(proto), "it") == ReLU(negative_slope=0.1)
    same(model([node("PRelu", "x s", "y", "it")], ["N", 2, 6, 6], s=np.array([-0.1], np.float32)))


def test_slopes_that_are_computed() -> None:
    nodes = [node("Sigmoid", "x", "s"), node("PRelu", "x s", "y", "it")]
    same(model(nodes, ["N", 2, 6, 6]))


# Constants beside activations


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
