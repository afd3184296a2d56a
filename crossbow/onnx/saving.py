"""From a dataflow to an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

import crossbow
from crossbow.context import write_whole
from crossbow.dataflow import Dataflow
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import BATCH, Graph, build
from crossbow.dataflow.validate import infer_shapes, input_shapes
from crossbow.onnx import transform, writers  # noqa: F401 - they fill the table
from crossbow.onnx.network import ANY_BATCH, MARK, check_input_shape
from crossbow.onnx.writer import OPSET, WRITERS, Place, Writer
from crossbow.ops import Constant, Kernel, Values
from crossbow.ops.kernel import VariableSpec
from crossbow.types import Array, GraphError, Shape

IR_VERSION = 9
"""The version of the file format that goes with the operators."""
_NO_CONTEXT = "a dataflow that no open context holds; save it inside `with ExecutionContext([dataflow, …]) as context:`"


def save(dataflow: Dataflow, path: str | os.PathLike[str], *, input_shape: Shape | None = None) -> None:
    """Write the network that predicts, with the base model's variables, as an ONNX model.

    It is the check dataflow without loss and accuracy: what `context.predict` computes. The input is called "input" and
    has the shape (N, …) with N free; it is what the first operator gets, so uint8 images have to be converted first, as
    the data set does (divided by 255). Of a DataTransform what it does in testing is written. The output is called like
    the node that computes it, and every node like ours. Numbers are in single precision, operators those of opset 19.
    The file is whole or not there; missing directories are made.

    In an open context the variables are the base model's. A dataflow that no context has held yet can be saved where
    every variable has initial values that are known (`Values`, as those of a loaded model, or `Constant`).

    Args:
        input_shape: (C, H, W) or (features,): of one example. Where a context has compiled the dataflow, it is known.

    Raises:
        GraphError: an operator has no counterpart in ONNX, the shape is missing, or the variables are not known:
            what a context has trained is gone when it is closed.
        DataError: the path is a directory.
    """
    if not isinstance(dataflow, Dataflow):
        raise TypeError(f"save: expected a Dataflow. Received: {dataflow!r}")
    check_input_shape("save", input_shape)
    if dataflow.compiled is not None and dataflow.base_model is None:
        # Its initial values may be known, but whoever has trained it does not mean those.
        raise GraphError([f"save: expected a dataflow whose base model is there. Received: {_NO_CONTEXT}"])
    graph = derive_prediction(build(dataflow.subgraph.nodes))
    batch = _batch(dataflow, input_shape)
    model = _write(graph, batch, None if dataflow.base_model is None else dataflow.base_model())
    write_whole(Path(path), model.SerializeToString())


def _batch(dataflow: Dataflow, input_shape: Shape | None) -> Shape:
    if input_shape is not None:
        return (ANY_BATCH, *input_shape)
    if dataflow.compiled is None:
        raise GraphError(
            ["save: expected a dataflow that a context has compiled, or input_shape=(C, H, W). Received: neither"]
        )
    return (ANY_BATCH, *dataflow.compiled.batch[1:])


def _write(graph: Graph, batch: Shape, known: Mapping[tuple[int, str], Array] | None) -> onnx.ModelProto:
    """The model of a graph whose last vertex is the output."""
    shapes = infer_shapes(graph, batch)
    names = {vertex.name for vertex in graph}
    source = "input"
    while source in names:
        source += "_"
    writer = Writer()
    values = {BATCH: source}
    for vertex in graph:
        kernel = vertex.forward
        assert kernel is not None
        given = input_shapes(vertex, batch, shapes)
        output = vertex.name if vertex.name not in values.values() else f"{vertex.name}#{vertex.order}"
        inputs = tuple(values[order] for order in vertex.inputs)
        values[vertex.order] = output
        specs = [*kernel.variables(*given), *kernel.running_statistics(*given)]
        variables = {spec.name: _value(spec, id(vertex.operator), known) for spec in specs}
        unknown = ", ".join(repr(name) for name, value in variables.items() if value is None)
        if unknown:
            writer.fault(vertex.name, kernel, f"expected {unknown} to have a value. Received: {_NO_CONTEXT}")
            continue
        found = {name: value for name, value in variables.items() if value is not None}
        write_operator(writer, vertex.order, kernel, vertex.name, inputs, given, output, found)
    if writer.faults:
        raise GraphError(writer.faults)
    last = graph[-1].order
    return make_model(writer, {source: batch}, {values[last]: shapes[last]})


def write_operator(
    writer: Writer,
    order: int,
    kernel: Kernel,
    name: str,
    inputs: tuple[str, ...],
    shapes: tuple[Shape, ...],
    output: str,
    variables: Mapping[str, Array],
) -> None:
    """Add the nodes of one operator, or a fault where ONNX has none such."""
    write = WRITERS.get(type(kernel))
    if write is None:
        writer.fault(name, kernel, "ONNX has no such operator")
        return
    mark = f"{MARK} {order} {type(kernel).__name__} {name}"
    write(Place(writer, kernel, name, inputs, shapes, kernel.output_shape(*shapes), output, variables, mark))


def make_model(writer: Writer, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]) -> onnx.ModelProto:
    """The model of the nodes that have been written, checked. A first size of ANY_BATCH is left open."""
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            writer.nodes,
            "crossbow",
            [_tensor(name, shape) for name, shape in inputs.items()],
            [_tensor(name, shape) for name, shape in outputs.items()],
            [onnx.numpy_helper.from_array(array, name) for name, array in writer.initializers.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name=MARK,
        producer_version=crossbow.__version__,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _value(spec: VariableSpec, operator: int, known: Mapping[tuple[int, str], Array] | None) -> Array | None:
    if known is not None:
        value = known.get((operator, spec.name))
        return None if value is None else value.astype(np.float32)
    if isinstance(spec.initialiser, Values | Constant):
        return spec.initialiser.fill(spec.shape, np.random.default_rng(0)).astype(np.float32)
    return None


def _tensor(name: str, shape: Shape) -> onnx.ValueInfoProto:
    sizes = ["N" if size == ANY_BATCH else size for size in shape]
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
