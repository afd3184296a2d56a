"""ONNX models as our networks."""

from __future__ import annotations

import dataclasses
import doctest
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


def test_several_inputs_or_outputs_are_refused() -> None:
    proto = model([node("Add", "x z", "y")], ["N", 4])
    proto.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", 4]))
    with pytest.raises(GraphError, match=r"^expected one input. Received: 'x', 'z'$"):
        load(proto)
    proto = model([node("Relu", "x", "y"), node("Tanh", "x", "z")], ["N", 4])
    proto.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", 4]))
    with pytest.raises(GraphError, match=r"^expected one output. Received: 'y', 'z'$"):
        load(proto)


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


@pytest.mark.parametrize("shape", ["3,4,4", (3, 0, 4), (3.0, 4, 4), (True,), 3])
def test_an_input_shape_that_is_none(shape: Any) -> None:
    proto = model([node("GlobalAveragePool", "x", "y")], ["N", 3, "H", "W"])
    with pytest.raises(GraphError, match=r"load: expected input_shape=\(C, H, W\) or \(features,\), each ≥ 1"):
        load(proto, input_shape=shape)


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
    proto = model([node("Foo", "x", "a", "foo"), node("Elu", "a", "y", "elu")], ["N", 2, 6, 6])
    onnx.save(proto, tmp_path / "model.onnx")
    for source in (proto, tmp_path / "model.onnx"):
        with pytest.raises(GraphError) as error:
            load(source)
        assert [fault.split(":")[0] for fault in error.value.faults] == ["node 'foo' (Foo)", "node 'elu' (Elu)"]


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


@pytest.mark.slow
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
