"""The reader tracks shapes, reads branches that are known, and names all faults at once."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import helper

from crossbow import GraphError
from crossbow.onnx import load
from crossbow.onnx.loading import read
from crossbow.ops import InnerProduct
from tests.onnx.models import draw, model, node, operators, run_crossbow, same
from tests.onnx.reading.test_folding import TOO_LARGE, numbers
from tests.onnx.test_loading import convolutional


def test_many_constants_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.onnx.reading.graph.LARGEST_CONSTANT", 1000)
    nodes = [node("ConstantOfShape", "s", f"k{number}") for number in range(3)]
    added = [node("Add", f"{'xabc'[number]} k{number}", "abc"[number]) for number in range(3)]
    for size, fits in ((320, True), (340, False)):
        proto = model([*nodes, *added], ["N", size], output="c", s=numbers(size))
        if fits:
            same(proto, draw(3, size))
        else:
            with pytest.raises(GraphError, match=f"'k2' .*{TOO_LARGE}, with less than 320 elements left"):
                load(proto)


def test_a_branch_that_is_known_is_read() -> None:
    """PyTorch writes one where it squeezes a dimension."""
    info = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)
    branches = {
        "then_branch": helper.make_graph([node("Relu", "r", "out", "taken")], "then", [], [info]),
        "else_branch": helper.make_graph([node("Tanh", "r", "out", "other")], "else", [], [info]),
    }
    for size, kind in ((1, "taken"), (3, "other")):
        nodes = [
            node("Neg", "x", "r", "negative"),
            node("Shape", "x", "s", start=1, end=2),
            node("Equal", "s one", "c"),
            helper.make_node("If", ["c"], ["y"], **branches),
        ]
        network = same(model(nodes, ["N", size], one=numbers(1)), draw(4, size))
        assert [each.operator.name for each in network.nodes] == ["negative", kind]


def test_nodes_without_names_get_their_type_and_a_number() -> None:
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "b", "Relu1"), node("Relu", "b", "y")]
    assert [name for name, _ in operators(load(model(nodes, ["N", 3])))] == ["Relu2", "Relu1", "Relu3"]


def test_nodes_on_which_nothing_depends_are_left_out() -> None:
    nodes = [node("Relu", "x", "y", "relu"), node("NonZero", "x", "z", "unused")]
    assert operators(load(model(nodes, ["N", 4]))) == [("relu", "ReLU")]


@pytest.mark.parametrize("opset", [5, 1])
def test_models_that_are_too_old_are_refused(opset: int) -> None:
    with pytest.raises(GraphError, match=f"expected ONNX operators of opset 6 to .* Received: opset {opset}"):
        load(model([node("Relu", "x", "y")], ["N", 4], opset=opset))


def test_everything_that_is_not_supported_is_named_at_once() -> None:
    nodes = [
        node("Conv", "x w", "c", "conv", auto_pad="SAME_UPPER", kernel_shape=[3, 3]),
        node("Softplus", "c", "s", "plus"),
        node("Clip", "s", "q", "clip", min=-1.0),
        node("BatchNormalization", "q g h m v", "n", "norm", spatial=0),
        node("Reshape", "n shape", "r", "reshape"),
        helper.make_node("Special", ["r"], ["z"], name="special", domain="com.example"),
        node("Transpose", "z", "t", "turn", perm=[1, 0, 2]),
        node("LSTM", "t k k", "y", "memory", hidden_size=3),
    ]
    proto = model(
        nodes,
        ["N", 2, 6, 6],
        opset=7,
        w=draw(2, 2, 3, 3),
        g=draw(2),
        h=draw(2),
        m=draw(2),
        v=np.abs(draw(2)),
        shape=np.array([-1, 36]),
        k=draw(1, 12, 36),
    )
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(GraphError) as caught:
        load(proto)
    faults = caught.value.faults
    assert [fault.partition(":")[0] for fault in faults] == [
        "node 'plus' (Softplus)",
        "node 'clip' (Clip)",
        "node 'norm' (BatchNormalization)",
        "node 'reshape' (Reshape)",
        "node 'special' (Special)",
        "node 'memory' (LSTM)",
    ]
    assert "Crossbow has no operator Special of com.example" in str(caught.value)
    assert str(caught.value).startswith("6 faults in the graph:\n")


def test_an_unknown_attribute_is_named() -> None:
    proto = model([node("Relu", "x", "y", "relu")], ["N", 4])
    proto.graph.node[0].attribute.append(helper.make_attribute("slope", 0.5))
    with pytest.raises(GraphError, match=r"^node 'relu' \(Relu\): attribute 'slope' is not known$"):
        load(proto)


def test_a_loss_is_not_read() -> None:
    proto = model([node("SoftmaxCrossEntropyLoss", "x t", "y", "loss")], ["N", 4])
    proto.graph.input.append(helper.make_tensor_value_info("t", onnx.TensorProto.INT64, ["N"]))
    with pytest.raises(
        GraphError, match=r"^node 'loss' .*: expected the network without its loss; append one, as Soft"
    ):
        load(proto)


def test_a_second_output_of_a_node_is_refused_where_it_is_used() -> None:
    nodes = [node("MaxPool", "x", "a b", "pool", kernel_shape=[2, 2]), node("Cast", "b", "c", to=1)]
    nodes.append(node("Add", "a c", "y"))
    with pytest.raises(GraphError, match=r"'pool' \(MaxPool\): expected only the first output to be used.*'b'"):
        load(model(nodes, ["N", 2, 6, 6]))


def test_an_output_that_does_not_depend_on_the_input_is_refused() -> None:
    with pytest.raises(GraphError, match="output 'y': expected it to depend on the input"):
        load(model([node("Relu", "w", "y")], ["N", 4], w=draw(4)))


def test_open_sizes_are_refused_unless_they_are_given() -> None:
    proto = model([node("GlobalAveragePool", "x", "y")], ["N", 3, "H", "W"])
    with pytest.raises(GraphError, match=r"input 'x': .* pass input_shape=.* Received: \(N, 3, H, W\), open at 2, 3"):
        load(proto)
    assert run_crossbow(load(proto, input_shape=(3, 4, 4)), draw(2, 3, 4, 4)).shape == (2, 3, 1, 1)


@pytest.mark.parametrize("batch", ["N", 1])
def test_an_input_shape_fills_in_what_is_open(batch: int | str) -> None:
    """The size of the batch, which it leaves out, is free even where the model has one."""
    network = load(
        model([node("Conv", "x w", "y", "c")], [batch, 3, "H", 5], w=draw(2, 3, 3, 3)), input_shape=(3, 4, 5)
    )
    assert run_crossbow(network, draw(2, 3, 4, 5)).shape == (2, 2, 2, 3)
    fixed = convolutional(batch)
    assert operators(load(fixed, input_shape=(2, 6, 6))) == operators(load(fixed))


@pytest.mark.parametrize("sizes", [[1, 3, 4, 4], ["N", 3, "H", 4], ["N", 2, "H", "W"]])
def test_an_input_shape_that_is_not_the_models(sizes: list[int | str]) -> None:
    proto = model([node("GlobalAveragePool", "x", "y")], sizes)
    said = re.escape(f"({', '.join(map(str, sizes))})")
    with pytest.raises(
        GraphError,
        match=rf"^input 'x': expected an input_shape with the sizes that the model fixes, as in {said} without the "
        r"batch. Received: \(3, 4, 5\)$",
    ):
        load(proto, input_shape=(3, 4, 5))


@pytest.mark.parametrize("sizes", [["N", 3, "H", "W"], ["N", 3, 4, 4]])
def test_an_input_shape_of_another_rank(sizes: list[int | str]) -> None:
    proto = model([node("GlobalAveragePool", "x", "y")], sizes)
    for shape in ((3, 4), (2, 3, 4, 4)):
        with pytest.raises(GraphError, match=r"input 'x': expected an input_shape of 3 sizes.* Received: \(") as caught:
            load(proto, input_shape=shape)
        assert len(caught.value.faults) == 1


def test_what_a_node_reads_and_nothing_gives() -> None:
    with pytest.raises(GraphError) as caught:
        load(model([node("Relu", "z", "a", "early"), node("Tanh", "x", "z"), node("Add", "a b", "y")], ["N", 4]))
    assert [fault.partition(" to be")[0] for fault in caught.value.faults] == [
        "node 'early' (Relu): expected 'z'",
        "node 'Add1' (Add): expected 'b'",
    ]


def test_an_output_in_the_middle_is_not_absorbed() -> None:
    """The sum after a product is its bias only if nothing else reads the product, as an output of the model does."""
    nodes = [node("MatMul", "x w", "p", "product"), node("Add", "p b", "y", "bias")]
    proto = model(nodes, ["N", 4], w=draw(4, 3), b=draw(3))
    assert list(read(proto).outputs) == ["y"]
    assert [type(step.kernel) for step in read(proto).steps] == [InnerProduct]
    proto.graph.output.append(helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, ["N", 3]))
    network = read(proto)
    assert [step.name for step in network.steps] == ["product", "bias"]
    assert network.outputs["p"] is network.steps[0]
