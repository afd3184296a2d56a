"""Networks as ONNX models: onnxruntime computes the same, and what is read again is the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from crossbow import (
    DataError,
    Dataflow,
    DataflowNode,
    Dataset,
    GraphError,
    Operator,
    Phase,
    SubGraph,
)
from crossbow.conf import configuration
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import BATCH, Graph, build
from crossbow.dataflow.validate import infer_shapes, variables_of
from crossbow.onnx import load, save
from crossbow.ops import (
    LRN,
    BatchNorm,
    Classify,
    Concat,
    Constant,
    Conv,
    Dropout,
    ElementWiseOp,
    InnerProduct,
    Kernel,
    Noop,
    Pool,
    ReLU,
    Scale,
    SoftMax,
    SoftMaxLoss,
    Values,
)
from crossbow.types import Shape
from tests.onnx.models import draw, kernel_of, operators, run_crossbow, run_onnx
from tests.onnx.written_models import Array, assert_close
from tests.support import blobs, chain, context, perceptron, pictures, training

# Whole networks


def residual() -> Dataflow:
    """Branches, a shared operator, and everything that pictures need."""
    start, *_, end = chain(
        Conv(number_of_outputs=4, kernel_size=3, padding=((1, 0), (0, 1)), bias=False),
        BatchNorm(bias=False),
        ReLU(mode="clipped"),
    )
    shared = DataflowNode(Operator("shared", Conv(number_of_outputs=4, kernel_size=3, padding=1, groups=2)))
    again, join = shared.shallow_copy(), DataflowNode(Operator("join", ElementWiseOp(coefficients=(1.0, 0.5))))
    end.connect_to(shared).connect_to(again).connect_to(join)
    end.connect_to(join)
    both = DataflowNode(Operator("both", Concat()))
    join.connect_to(both)
    end.connect_to(both)
    rest = chain(
        Pool(method="average", kernel_size=3, stride=2, padding=1),
        Scale(bias=True),
        LRN(size=3),
        Dropout(),
        InnerProduct(number_of_outputs=6),
        ReLU(negative_slope=0.1),
        Noop(),
        InnerProduct(number_of_outputs=3, bias=False),
        SoftMax(),
        SoftMaxLoss(),
    )
    both.connect_to(rest[0])
    return Dataflow(SubGraph(start)).set_phase(Phase.TRAIN)


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 2])
def test_a_trained_network(tmp_path: Path, learners: int) -> None:
    """onnxruntime predicts as the context does, and load(save(x)) is x: operators, names, variables, outputs."""
    dataflow, data = residual(), pictures()
    path = tmp_path / "model.onnx"
    with context(dataflow, data=data, learners=learners) as training:
        training.train(3)
        save(training, path)
        x, predicted, variables = data.check.images, training.predict(data.check.images), training.variables  # type: ignore[union-attr]
        before = derive_prediction(build(dataflow.subgraph.nodes))
    proto = onnx.load(path)
    assert proto.producer_name == "crossbow"
    assert [entry.name for entry in proto.graph.input] == ["input"]
    assert [entry.name for entry in proto.graph.output] == [before[-1].name]
    pixels = x.astype(np.float32) / 255
    assert_close(run_onnx(proto, input=pixels), predicted)

    network = load(path)
    assert rows(build(network.nodes), x.shape) == rows(before, x.shape)
    assert_close(run_crossbow(network, pixels), predicted)
    assert initial_values(network, x.shape[1:]).keys() == variables.keys()
    for name, value in initial_values(network, x.shape[1:]).items():
        np.testing.assert_array_equal(value, variables[name])

    save(network, tmp_path / "again.onnx", input_shape=x.shape[1:])
    assert (tmp_path / "again.onnx").read_bytes() == path.read_bytes()


def rows(graph: Graph, batch: Shape) -> list[tuple[Any, ...]]:
    """What `describe` shows, and the inputs by name; in an order that does not depend on that of the branches."""
    shapes = infer_shapes(graph, batch)
    specs = variables_of(graph, batch, shapes)
    return sorted(
        (
            vertex.name,
            type(vertex.kernel).__name__,
            [graph[source].name for source in vertex.inputs if source != BATCH],
            shapes[vertex.order],
            [(spec.name, spec.shape) for spec in specs.get(vertex.order, ())],
        )
        for vertex in graph
    )


def initial_values(network: SubGraph, shape: Shape) -> dict[str, Array]:
    """By the names that a context gives them."""
    with context(to_train_on(network), data=_data(shape), learners=1) as fresh:
        return fresh.variables


def to_train_on(network: SubGraph) -> Dataflow:
    network.tail.connect_to(DataflowNode(Operator("loss of a test", SoftMaxLoss())))
    dataflow = Dataflow(SubGraph(network.head)).set_phase(Phase.TRAIN)
    assert dataflow.graph  # now it is made, and the loss can go again
    network.tail.next.pop()
    return dataflow


def _data(shape: Shape) -> Dataset:
    return Dataset((draw(8, *shape), np.arange(8) % 3), number_of_classes=3)


def test_the_check_dataflow_of_a_user(tmp_path: Path) -> None:
    """Operators are the training dataflow's; the graph is its own."""
    dataflow = perceptron()
    start = DataflowNode(dataflow.subgraph.head.operator)
    start.connect_to(DataflowNode(Operator("largest", Classify(axis=-1))))
    check = Dataflow(SubGraph(start)).set_phase(Phase.CHECK)
    with context(dataflow, check=check) as training:
        save(training, tmp_path / "model.onnx")
        hidden = training.variables["InnerProduct0.weights"]
    x = blobs().check.images.astype(np.float32)  # type: ignore[union-attr]
    received = run_onnx(onnx.load(tmp_path / "model.onnx"), input=x)
    assert received.dtype == np.float32
    np.testing.assert_array_equal(received, (x @ hidden.T).argmax(axis=1))


def test_a_cumulative_mean_stays_one(tmp_path: Path) -> None:
    """And in further training the next batch is one of many."""
    kernels = (Conv(number_of_outputs=2, kernel_size=3), BatchNorm(statistics="cma"), InnerProduct(number_of_outputs=3))
    dataflow, data, path = training(*kernels), pictures(), tmp_path / "model.onnx"
    with context(dataflow, data=data) as first:
        first.train(2)
        save(first, path)
        x, predicted, variables = data.check.images, first.predict(data.check.images), first.variables  # type: ignore[union-attr]
    network = load(path)
    assert kernel_of(network, "BatchNorm1").statistics == "cma"
    loaded = initial_values(network, x.shape[1:])
    assert loaded.keys() == variables.keys()
    for name, value in loaded.items():
        np.testing.assert_array_equal(value, variables[name])
    assert loaded["BatchNorm1.count"] > 1
    pixels = x.astype(np.float32) / 255
    assert_close(run_onnx(onnx.load(path), input=pixels), predicted)
    assert_close(run_crossbow(network, pixels), predicted)


def test_any_batch_size(tmp_path: Path) -> None:
    dataflow = training(Conv(number_of_outputs=2, kernel_size=3), InnerProduct(number_of_outputs=3))
    with context(dataflow, data=pictures()) as running:
        save(running, tmp_path / "model.onnx")
    proto = onnx.load(tmp_path / "model.onnx")
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    for batch in (1, 7):
        assert run_onnx(proto, input=draw(batch, 1, 8, 8)).shape == (batch, 3)


def test_known_initial_values_need_no_context(tmp_path: Path) -> None:
    weights = draw(2, 3)
    (node,) = chain(
        InnerProduct(number_of_outputs=2, weight_initialiser=Values(weights), bias_initialiser=Constant(1.0))
    )
    save(SubGraph(node), tmp_path / "model.onnx", input_shape=(3,))
    x = draw(4, 3)
    assert_close(run_onnx(onnx.load(tmp_path / "model.onnx"), input=x), x @ weights.T + 1)


def test_an_operator_called_input(tmp_path: Path) -> None:
    node = DataflowNode(Operator("input", ReLU()))
    save(SubGraph(node), tmp_path / "model.onnx", input_shape=(3,))
    proto = onnx.load(tmp_path / "model.onnx")
    assert (proto.graph.input[0].name, proto.graph.output[0].name) == ("input_", "input")
    assert operators(load(tmp_path / "model.onnx")) == [("input", "ReLU")]


# Faults


@configuration
class Square(Kernel):
    """Unknown to ONNX."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


def test_everything_that_cannot_be_written_is_named_at_once(tmp_path: Path) -> None:
    nodes = chain(Square(), InnerProduct(number_of_outputs=2), Square())
    with pytest.raises(GraphError) as caught:
        save(SubGraph(nodes[0]), tmp_path / "model.onnx", input_shape=(3,))
    assert [fault.partition(":")[0] for fault in caught.value.faults] == [
        "node 'Square0' (Square)",
        "node 'InnerProduct1' (InnerProduct)",
        "node 'Square2' (Square)",
    ]
    assert "expected 'weights' to have known values. Received: random initial values" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_subgraph_without_a_shape() -> None:
    with pytest.raises(GraphError, match=r"save: expected input_shape=\(C, H, W\) .* of a SubGraph\. Received: none"):
        save(perceptron().subgraph, "/nowhere")


@pytest.mark.parametrize("shape", ["3", (0,), (4.0,)])
def test_an_input_shape_that_is_none(shape: Any, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"save: expected input_shape=\(C, H, W\) or \(features,\), each ≥ 1"):
        save(perceptron().subgraph, tmp_path / "model.onnx", input_shape=shape)


@pytest.mark.parametrize("model", [perceptron(), None, "model"])
def test_only_contexts_and_subgraphs_are_saved(model: Any, tmp_path: Path) -> None:
    """A dataflow has no values: the context that trains it has."""
    expected = "expected an ExecutionContext, whose base model is written, a SubGraph with known initial values, or a "
    expected += "Predictor with a model from a file"
    with pytest.raises(TypeError, match=rf"^save: {expected}\. Received: {re.escape(repr(model))}$"):
        save(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_directory_is_not_written_over(tmp_path: Path) -> None:
    with context(perceptron()) as running, pytest.raises(DataError, match="expected the name of a file to write"):
        save(running, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "received"),
    [((1, 12, 12), "(1, 12, 12), with which"), ((2, 8, 8), "(2, 8, 8), with which"), ((12,), "(N, 12)")],
)
def test_an_input_shape_that_the_variables_do_not_fit(tmp_path: Path, shape: Shape, received: str) -> None:
    dataflow = training(Conv(number_of_outputs=2, kernel_size=3), InnerProduct(number_of_outputs=3))
    expected = re.escape(f"Received: {received}")
    with context(dataflow, data=pictures()) as running, pytest.raises(GraphError, match=expected):
        save(running, tmp_path / "model.onnx", input_shape=shape)
    assert list(tmp_path.iterdir()) == []


def test_images_of_another_size(tmp_path: Path) -> None:
    """A network of convolutions has the same variables."""
    dataflow = training(Conv(number_of_outputs=3, kernel_size=3), Pool(method="average", global_pooling=True))
    with context(dataflow, data=pictures()) as running:
        save(running, tmp_path / "model.onnx", input_shape=(1, 12, 10))
    assert run_onnx(onnx.load(tmp_path / "model.onnx"), input=draw(2, 1, 12, 10)).shape == (2, 3, 1, 1)
