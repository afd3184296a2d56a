"""ONNX operators that move, select or pad elements, as Crossbow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from crossbow import GraphError
from crossbow.onnx import load
from tests.onnx.models import constant, draw, kernel_of, model, node, operators, run_crossbow, run_onnx, same


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


def test_transposes_that_undo_each_other_are_left_out() -> None:
    there, back = {"perm": [0, 3, 1, 2]}, {"perm": [0, 2, 3, 1]}
    nodes = [
        node("Transpose", "x", "a", "first", **there),
        node("Relu", "a", "b", "relu1"),
        node("Transpose", "b", "c", "second", **back),
        node("Transpose", "c", "d", "third", **there),
        node("Relu", "d", "e", "relu2"),
        node("Transpose", "e", "y", "fourth", **back),
    ]
    network, x = load(model(nodes, ["N", 9, 9, 3])), draw(5, 9, 9, 3)
    assert [name for name, _ in operators(network)] == ["first", "relu1", "relu2", "fourth"]
    np.testing.assert_array_equal(run_crossbow(network, x), np.maximum(x, 0))


def test_transposes_behind_each_other_are_one() -> None:
    nodes = [node("Transpose", "x", "a", perm=[0, 2, 1, 3]), node("Transpose", "a", "y", "both", perm=[0, 3, 1, 2])]
    proto, x = model(nodes, ["N", 2, 3, 4]), draw(5, 2, 3, 4)
    network = load(proto)
    assert [name for name, _ in operators(network)] == ["both"]
    np.testing.assert_array_equal(run_crossbow(network, x), run_onnx(proto, x=x))


@pytest.mark.parametrize("sizes", [None, [1, 3, 3]])
@pytest.mark.parametrize("opset", [11, 17])
def test_parts_of_a_tensor_are_joined_again(sizes: list[int] | None, opset: int) -> None:
    nodes = [node("Split", "x" if sizes is None or opset < 13 else "x parts", "a b c", "split", axis=1)]
    if sizes is not None and opset < 13:
        nodes[0].attribute.append(helper.make_attribute("split", sizes))
    count = 7 if sizes else 6
    proto = model(
        [*nodes, node("Concat", "c a b", "y", axis=1)], ["N", count], opset=opset, parts=np.array(sizes or [])
    )
    same(proto, draw(3, count))


def test_the_last_part_of_an_uneven_split_is_smaller() -> None:
    """7 elements in 3 parts: 3, 3 and 1."""
    nodes = [node("Split", "x", "a b c", "split", axis=1, num_outputs=3), node("Concat", "c b a", "y", axis=1)]
    x = draw(2, 7)
    found = run_crossbow(load(model(nodes, ["N", 7], opset=18)), x)
    np.testing.assert_array_equal(found, x[:, [6, 3, 4, 5, 0, 1, 2]])


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [([1], [5], [2], [1]), ([-3, 0], [9, 1], [-1, 1], [2, 1]), ([0], [6], [3], [5]), ([0], [-1], [2], [1])],
)
def test_slices(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> None:
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    arrays = {name: np.array(value) for name, value in given.items()}
    same(model([node("Slice", "x starts ends axes steps", "y", "it")], ["N", 2, 6, 6], **arrays))
