"""ONNX models as our networks."""

from __future__ import annotations

import dataclasses
import doctest
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from crossbow import DataError, Dataflow, DataflowNode, GraphError, Operator, SubGraph
from crossbow.onnx import load, save
from crossbow.onnx.reading import node as reading_node
from crossbow.ops import (
    BatchNorm,
    ChannelShuffle,
    Conv,
    Dropout,
    ElementWiseOp,
    InnerProduct,
    Pool,
    ReLU,
    Reshape,
    Scale,
    SoftMax,
    SoftMaxLoss,
    Transpose,
    Values,
)
from tests.combinations import one_in
from tests.onnx.models import X, draw, kernel_of, model, node, operators, run_crossbow, run_onnx, same
from tests.support import KERNELS, WHY_NOT_FAST, context, pictures

Array = NDArray[Any]


def convolutional(batch: int | str = "N", **more: Any) -> onnx.ModelProto:
    """Convolution, normalisation, pooling, and two inner products."""
    nodes = [
        node("Conv", "x w b", "c", "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c g h m v", "n", "norm", epsilon=1e-3),
        node("Relu", "n", "r", "relu"),
        node("MaxPool", "r", "p", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p", "f", "flatten"),
        node("Gemm", "f w1 b1", "d", "hidden", transB=1, alpha=0.5),
        node("Tanh", "d", "t", "tanh"),
        node("MatMul", "t w2", "u", "output"),
        node("Add", "u b2", "a", "bias"),
        node("Softmax", "a", "y", "softmax"),
    ]
    weights = {
        "w": draw(4, 2, 3, 3),
        "b": draw(4),
        "g": draw(4, seed=1),
        "h": draw(4, seed=2),
        "m": draw(4, seed=3),
        "v": np.abs(draw(4, seed=4)),
        "w1": draw(5, 36),
        "b1": draw(5),
        "w2": draw(5, 3),
        "b2": draw(3),
    }
    return model(nodes, [batch, 2, 6, 6], **{**weights, **more})


# What comes out


def test_nodes_become_operators_of_their_names_and_compute_the_same() -> None:
    network = same(convolutional())
    assert operators(network) == [
        ("conv", "Conv"),
        ("norm", "BatchNorm"),
        ("relu", "ReLU"),
        ("pool", "Pool"),
        ("flatten", "Flatten"),
        ("hidden", "InnerProduct"),
        ("tanh", "ReLU"),
        ("output", "InnerProduct"),  # with the bias that is added behind it
        ("softmax", "SoftMax"),
    ]
    assert network.tail.operator.name == "softmax"
    weights = kernel_of(network, "conv").weight_initialiser
    assert weights == Values(draw(4, 2, 3, 3))
    assert repr(weights) == "Values(float32 (4, 2, 3, 3))"


def test_a_fixed_batch_size_is_no_limit() -> None:
    network = load(convolutional(batch=1))
    assert operators(network) == operators(load(convolutional()))
    assert run_crossbow(network, X).shape == (3, 3)


def test_nodes_without_names_get_their_type_and_a_number() -> None:
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "b", "Relu1"), node("Relu", "b", "y")]
    assert [name for name, _ in operators(load(model(nodes, ["N", 3])))] == ["Relu2", "Relu1", "Relu3"]


def test_a_model_in_memory_stays_as_it_is() -> None:
    proto = convolutional()
    proto.graph.node[0].ClearField("name")
    before = proto.SerializeToString()
    load(proto)
    assert proto.SerializeToString() == before


def test_a_model_that_does_nothing() -> None:
    assert operators(same(model([node("Cast", "x", "y", to=1)], ["N", 4]), draw(3, 4))) == [("x", "Noop")]


def test_doctests() -> None:
    assert doctest.testmod(reading_node).failed == 0


def test_from_a_file(tmp_path: Path) -> None:
    onnx.save(convolutional(), tmp_path / "model.onnx")
    for path in (tmp_path / "model.onnx", str(tmp_path / "model.onnx")):
        assert operators(load(path)) == operators(load(convolutional()))


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    onnx.save(convolutional(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert (tmp_path / "m.data").is_file()
    np.testing.assert_array_equal(run_crossbow(load(tmp_path / "m.onnx"), X), run_crossbow(load(convolutional()), X))


@KERNELS
def test_a_loaded_model_trains_on(kernels: str) -> None:
    proto = convolutional()
    network = load(proto)
    network.tail.connect_to(DataflowNode(Operator("loss", SoftMaxLoss())))
    data = pictures(size=6)
    with_channels = [np.repeat(part, 2, axis=1) for part in (data.train.images, data.check.images)]  # type: ignore[union-attr]
    data.train = dataclasses.replace(data.train, images=with_channels[0])
    data.check = dataclasses.replace(data.check, images=with_channels[1])  # type: ignore[type-var]
    with context(Dataflow(SubGraph(network.head)), data=data, kernels=kernels) as training:
        x = with_channels[1]
        expected = run_onnx(proto, x=x.astype(np.float32) / 255)
        np.testing.assert_allclose(training.predict(x), expected, rtol=1e-5, atol=1e-5)
        first = training.test().loss
        training.train(5)
        assert training.test().loss < first


def test_every_node_has_variables_of_its_own() -> None:
    nodes = [node("Gemm", "x w", "a", "one"), node("Gemm", "a w", "y", "two")]
    network = same(model(nodes, ["N", 4], w=draw(4, 4)), draw(3, 4))
    assert len({id(node.operator) for node in network.nodes}) == 2


def test_an_input_that_several_nodes_read() -> None:
    nodes = [node("Relu", "x", "a", "left"), node("Tanh", "x", "b", "right"), node("Add", "a b", "y", "sum")]
    network = same(model(nodes, ["N", 4]), draw(3, 4))
    assert operators(network) == [("x", "Noop"), ("left", "ReLU"), ("right", "ReLU"), ("sum", "ElementWiseOp")]


def test_nodes_on_which_nothing_depends_are_left_out() -> None:
    nodes = [node("Relu", "x", "y", "relu"), node("NonZero", "x", "z", "unused")]
    assert operators(load(model(nodes, ["N", 4]))) == [("relu", "ReLU")]


# Versions


@pytest.mark.parametrize("opset", [7, 12])
def test_dropout_in_its_forms(opset: int) -> None:
    if opset < 12:
        proto = model([node("Relu", "x", "a"), node("Dropout", "a", "y", "drop", ratio=0.3)], ["N", 4], opset=opset)
    else:
        nodes = [node("Relu", "x", "a"), node("Dropout", "a r", "y", "drop")]
        proto = model(nodes, ["N", 4], opset=opset, r=np.array(0.3, np.float32))
    assert kernel_of(same(proto, draw(3, 4)), "drop") == Dropout(ratio=0.3)


@pytest.mark.parametrize("opset", [6, 11, 17])
def test_clip_in_its_forms(opset: int) -> None:
    if opset < 11:
        proto = model([node("Clip", "x", "y", "clip", min=0.0, max=6.0)], ["N", 4], opset=opset)
    else:
        proto = model(
            [node("Clip", "x low high", "y", "clip")],
            ["N", 4],
            opset=opset,
            low=np.array(0, np.float32),
            high=np.array(6, np.float32),
        )
    assert kernel_of(load(proto), "clip") == ReLU(mode="clipped", ceiling=6)
    proto = model([node("Clip", "x low", "y", "clip")], ["N", 4], low=np.array(0, np.float32))
    assert kernel_of(same(proto, draw(3, 4)), "clip") == ReLU()
    with pytest.raises(GraphError, match=r"'clip' \(Clip\): expected min=0"):
        load(model([node("Clip", "x low", "y", "clip")], ["N", 4], low=np.array(-1, np.float32)))


def test_softmax_before_opset_13_sums_over_all_that_follows() -> None:
    flat = model([node("Softmax", "x", "y", "p")], ["N", 4], opset=11)
    assert kernel_of(same(flat, draw(3, 4)), "p") == SoftMax(axis=1)
    image = model([node("Softmax", "x", "y", "p")], ["N", 4, 1, 1], opset=11)
    assert kernel_of(same(image, draw(3, 4, 1, 1)), "p") == SoftMax(axis=1)
    with pytest.raises(GraphError, match=r"'p' \(Softmax\): axis=1 of version 11 sums over all dimensions from it on"):
        load(model([node("Softmax", "x", "y", "p")], ["N", 2, 6, 6], opset=11))
    last = model([node("Softmax", "x", "y", "p")], ["N", 2, 6, 6], opset=13)
    assert kernel_of(same(last), "p") == SoftMax(axis=3)


@pytest.mark.parametrize("opset", [5, 1])
def test_models_that_are_too_old_are_refused(opset: int) -> None:
    with pytest.raises(GraphError, match=f"expected ONNX operators of opset 6 to .* Received: opset {opset}"):
        load(model([node("Relu", "x", "y")], ["N", 4], opset=opset))


def test_training_mode_is_refused() -> None:
    statistics = {"m": draw(2), "v": np.abs(draw(2)), "g": draw(2), "h": draw(2)}
    nodes = [node("BatchNormalization", "x g h m v", "n m2 v2", "norm", training_mode=1)]
    nodes.append(node("Dropout", "n r t", "y", "drop"))
    proto = model(nodes, ["N", 2, 6, 6], **statistics, r=np.array(0.5, np.float32), t=np.array(True))
    with pytest.raises(GraphError) as caught:
        load(proto)
    assert [fault.partition(":")[0] for fault in caught.value.faults] == ["node 'norm'", "node 'drop'"]
    assert "a BatchNorm in training mode" in str(caught.value)


# Faults


def test_the_traceback_has_the_users_frames_only(tmp_path: Path) -> None:
    with pytest.raises(GraphError) as loaded:
        load(model([node("Tile", "x n", "y")], ["N", 4], n=np.array([1, 2])))
    with pytest.raises(GraphError) as saved:
        save(SubGraph(DataflowNode(Operator("relu", ReLU()))), tmp_path / "model.onnx")
    for caught in (loaded, saved):
        assert {str(entry.path) for entry in caught.traceback} == {__file__}


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


def test_several_inputs_or_outputs_are_refused() -> None:
    proto = model([node("Add", "x z", "y")], ["N", 4])
    proto.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", 4]))
    with pytest.raises(GraphError, match=r"^expected one input. Received: 'x', 'z'$"):
        load(proto)
    proto = model([node("Relu", "x", "y"), node("Tanh", "x", "z")], ["N", 4])
    proto.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", 4]))
    with pytest.raises(GraphError, match=r"^expected one output. Received: 'y', 'z'$"):
        load(proto)


def test_a_second_output_of_a_node_is_refused_where_it_is_used() -> None:
    nodes = [node("MaxPool", "x", "a b", "pool", kernel_shape=[2, 2]), node("Cast", "b", "c", to=1)]
    nodes.append(node("Add", "a c", "y"))
    with pytest.raises(GraphError, match=r"'pool' \(MaxPool\): expected only the first output to be used.*'b'"):
        load(model(nodes, ["N", 2, 6, 6]))


def test_an_output_that_does_not_depend_on_the_input_is_refused() -> None:
    with pytest.raises(GraphError, match="output 'y': expected it to depend on the input"):
        load(model([node("Relu", "w", "y")], ["N", 4], w=draw(4)))


def test_inputs_of_other_types_are_refused() -> None:
    proto = model([node("Relu", "x", "y")], ["N", 4], kind=onnx.TensorProto.FLOAT16)
    with pytest.raises(GraphError, match=r"input 'x': expected numbers of type FLOAT or DOUBLE. Received: FLOAT16"):
        load(proto)


def test_weights_of_other_types_are_refused() -> None:
    with pytest.raises(GraphError, match=r"'c' \(Conv\): expected weights in float32 or float64. Received: float16"):
        load(model([node("Conv", "x w", "y", "c")], ["N", 2, 6, 6], w=draw(4, 2, 3, 3).astype(np.float16)))
    weights = draw(4, 2, 3, 3)
    weights[0, 0, 0, 0] = np.nan
    with pytest.raises(GraphError, match=r"'c' \(Conv\): expected finite weights.* in input 1 \('w'\)"):
        load(model([node("Conv", "x w", "y", "c")], ["N", 2, 6, 6], w=weights))


@pytest.mark.parametrize(("bad", "received"), [(-0.25, "Received: -0.25"), (np.inf, "finite"), (np.nan, "finite")])
def test_a_running_variance_that_is_none_is_refused(bad: float, received: str) -> None:
    constants = {name: np.ones(3, np.float32) for name in "ghmv"}
    constants["v"][1] = bad
    with pytest.raises(GraphError, match=r"'n' \(BatchNormalization\): ") as caught:
        load(model([node("BatchNormalization", "x g h m v", "y", "n")], ["N", 3, 4, 4], **constants))
    assert received in str(caught.value)
    assert "'v'" in str(caught.value)


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


@pytest.mark.parametrize("shape", ["3,4,4", (3, 0, 4), (3.0, 4, 4), (True,), 3])
def test_an_input_shape_that_is_none(shape: Any) -> None:
    proto = model([node("GlobalAveragePool", "x", "y")], ["N", 3, "H", "W"])
    with pytest.raises(GraphError, match=r"load: expected input_shape=\(C, H, W\) or \(features,\), each ≥ 1"):
        load(proto, input_shape=shape)


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


def test_outputs_without_a_row_for_each_example_are_refused() -> None:
    with pytest.raises(GraphError, match="node 'flatten': expected an output with one row for each example"):
        load(model([node("Flatten", "x", "y", "flatten", axis=2)], ["N", 2, 6, 6]))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing.onnx: expected an ONNX model. Received: no such file"):
        load(tmp_path / "nothing.onnx")
    (tmp_path / "text.onnx").write_text("this is no model")
    with pytest.raises(DataError, match=r"text.onnx: expected an ONNX model"):
        load(tmp_path / "text.onnx")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(DataError, match=r"empty\.onnx: expected an ONNX model\. Received: an empty file"):
        load(tmp_path / "empty.onnx")


def test_what_is_not_there_is_named_at_once_though_the_checker_stops_at_the_first(tmp_path: Path) -> None:
    proto = model([node("Foo", "x", "a", "foo"), node("Erf", "a", "y", "erf")], ["N", 2, 6, 6])
    onnx.save(proto, tmp_path / "model.onnx")
    for source in (proto, tmp_path / "model.onnx"):
        with pytest.raises(GraphError) as error:
            load(source)
        assert [fault.split(":")[0] for fault in error.value.faults] == ["node 'foo' (Foo)", "node 'erf' (Erf)"]


def test_a_damaged_model(tmp_path: Path) -> None:
    """The initializer says that it has other sizes than it has numbers."""
    proto = model([node("Gemm", "x w", "y", "gemm")], ["N", 4], w=np.ones((4, 3), np.float32))
    proto.graph.initializer[0].dims[0] = 5
    onnx.save(proto, tmp_path / "model.onnx")
    for source in (proto, tmp_path / "model.onnx"):
        with pytest.raises(DataError, match=r"expected an ONNX model\. Received: ") as error:
            load(source)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", [None, 5, b"model.onnx"], ids=str)
def test_no_path(path: Any) -> None:
    with pytest.raises(TypeError, match=r"load: expected a path, as a str or a pathlib\.Path\. Received: "):
        load(path)


# Architectures

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@one_in(2)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bvlc_alexnet", {Conv: 5, InnerProduct: 3, Dropout: 2}),
        ("densenet121", {Conv: 121, BatchNorm: 121, Scale: 121}),
        ("inception_v1", {Conv: 57, InnerProduct: 1, Pool: 14}),
        ("inception_v2", {Conv: 69, BatchNorm: 69, Scale: 69}),
        ("resnet50", {Conv: 53, BatchNorm: 53, ElementWiseOp: 16, InnerProduct: 1}),
        ("shufflenet", {Conv: 49, ChannelShuffle: 16, Reshape: 0, Transpose: 0}),
        ("squeezenet", {Conv: 26, Pool: 4}),
        ("zfnet512", {Conv: 5, InnerProduct: 3}),
    ],
)
def test_known_architectures_can_be_read(name: str, expected: dict[type, int]) -> None:
    """The package brings them along with weights that are one number each."""
    network = load(LIGHT / f"light_{name}.onnx")
    kernels = [type(node.operator.kernel) for node in network.nodes]
    assert {kind: kernels.count(kind) for kind in expected} == expected


@pytest.mark.slow
@pytest.mark.skipif(WHY_NOT_FAST is not None, reason=f"no fast kernels: {WHY_NOT_FAST}")
@pytest.mark.parametrize("name", ["densenet121", "inception_v1", "resnet50", "shufflenet", "squeezenet"])
def test_known_architectures_predict_what_onnxruntime_does(name: str) -> None:
    """With random weights, on the fast kernels."""
    proto = with_random_weights(onnx.load(LIGHT / f"light_{name}.onnx"))
    weights = {entry.name for entry in proto.graph.initializer}
    (source,) = (entry.name for entry in proto.graph.input if entry.name not in weights)
    x = draw(1, 3, 224, 224)
    expected, received = run_onnx(proto, **{source: x}), run_crossbow(load(proto), x, fast=True)
    assert np.ptp(expected) > 1e-3 * np.abs(expected).max()
    np.testing.assert_allclose(received, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())


def with_random_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Instead of the numbers that ConstantOfShape repeats."""
    sizes = {entry.name: onnx.numpy_helper.to_array(entry) for entry in proto.graph.initializer}
    for place, made in enumerate(each for each in list(proto.graph.node) if each.op_type == "ConstantOfShape"):
        shape = tuple(map(int, sizes[made.input[0]]))
        generator = np.random.default_rng(place)
        if len(shape) > 1:
            values = generator.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        else:
            values = generator.uniform(0.5, 1.5, shape)  # variances among them
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), made.output[0]))
        proto.graph.node.remove(made)
    return proto
