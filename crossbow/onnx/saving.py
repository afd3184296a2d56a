"""From a dataflow to an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import onnx

from crossbow.dataflow import Dataflow
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import BATCH, Graph, build
from crossbow.dataflow.validate import infer_shapes, input_shapes
from crossbow.files import checked_path, write_whole
from crossbow.onnx import data_transform  # noqa: F401 - it fills the tables
from crossbow.onnx.network import ANY_BATCH, check_input_shape
from crossbow.onnx.writing import operators  # noqa: F401 - it fills the table
from crossbow.onnx.writing.model import Writer, make_model
from crossbow.onnx.writing.table import write_operator
from crossbow.ops import Constant, Values
from crossbow.ops.kernel import VariableSpec
from crossbow.types import Array, GraphError, Shape

_NO_CONTEXT = "a dataflow that no open context holds; save it inside `with ExecutionContext([dataflow, …]) as context:`"


def save(dataflow: Dataflow, path: str | os.PathLike[str], *, input_shape: Shape | None = None) -> None:
    """Write the network that predicts, with the base model's variables, as an ONNX model.

    It is the check dataflow without loss and accuracy: what `context.predict` computes. The input is called "input" and
    has the shape (N, …) with N free; it is what the first operator gets, so uint8 images have to be converted first, as
    the data set does (divided by 255). Of a DataTransform what it does in testing is written. The output is called like
    the node that computes it, and every node like ours. Numbers are in single precision, operators those of opset 19.
    The file is whole or not there; missing directories are made.

    The variables are the base model's of the context that holds the dataflow: between calls of `train`, or in
    `Monitor.record`. A dataflow that no context has held yet can be saved where every variable has initial values that
    are known (`Values`, as those of a loaded model, or `Constant`). Weights are a context's, not an operator's: another
    dataflow of the same operators, held by none, is saved as they began.

    What is for training only and ONNX has no notion of is kept in the model's metadata, where `load` finds it and other
    runtimes do not look: multipliers of the learning rate, random windows and mirrors, and that a BatchNorm takes the
    plain mean of all batches ("cma"), and of how many so far. Dropout predicts nothing, and is left out.

    Args:
        input_shape: (C, H, W) or (features,): of one example. Where a context has compiled the dataflow, it is known;
            another one is allowed where the variables are the same, as those of convolutions for images of any size.

    Raises:
        GraphError: an operator has no counterpart in ONNX, the shape is missing or does not fit the variables, or
            these are not known: what a context has trained is gone when it is closed; or two open contexts hold the
            dataflow, each with a base model of its own.
        CrossbowError: the context is training.
        DataError: the file cannot be written.
    """
    if not isinstance(dataflow, Dataflow):
        raise TypeError(f"save: expected a Dataflow. Received: {dataflow!r}")
    path = checked_path("save", path)
    check_input_shape("save", input_shape)
    base_model = dataflow.base_model
    if dataflow.was_held and base_model is None:
        # Its initial values may be known, but whoever has trained it does not mean those.
        raise GraphError([f"save: expected a dataflow whose base model is there. Received: {_NO_CONTEXT}"])
    graph = derive_prediction(build(dataflow.subgraph.nodes))
    batch = _batch(dataflow, input_shape)
    model = _write(graph, batch, None if base_model is None else base_model())
    write_whole(path, model.SerializeToString())


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
    try:
        shapes = infer_shapes(graph, batch)
    except GraphError as error:
        raise GraphError([fault.replace(str(ANY_BATCH), "N") for fault in error.faults]) from None
    names = {vertex.name for vertex in graph}
    source = "input"
    while source in names:
        source += "_"
    writer = Writer()
    values = {BATCH: source}
    taken = {source}
    for vertex in graph:
        kernel = vertex.forward
        assert kernel is not None
        given = input_shapes(vertex, batch, shapes)
        output = vertex.name if vertex.name not in taken else f"{vertex.name}#{vertex.order}"
        taken.add(output)
        inputs = tuple(values[order] for order in vertex.inputs)
        values[vertex.order] = output
        specs = [*kernel.variables(*given), *kernel.running_statistics(*given)]
        variables = {spec.name: _value(spec, id(vertex.operator), known) for spec in specs}
        unknown = ", ".join(repr(name) for name, value in variables.items() if value is None)
        if unknown:
            writer.fault(vertex.name, kernel, f"expected {unknown} to have a value. Received: {_NO_CONTEXT}")
            continue
        found = {name: value for name, value in variables.items() if value is not None}
        others = [spec for spec in specs if found[spec.name].shape != spec.shape]
        if others:
            wanted = ", ".join(f"{spec.name!r} has shape {found[spec.name].shape}" for spec in others)
            received = f"{batch[1:]}, with which it has {', '.join(str(spec.shape) for spec in others)}"
            writer.fault(vertex.name, kernel, f"expected an input_shape with which {wanted}. Received: {received}")
            continue
        write_operator(writer, vertex.order, kernel, vertex.name, inputs, given, output, found)
    if writer.faults:
        raise GraphError(writer.faults)
    last = graph[-1].order
    return make_model(writer, {source: batch}, {values[last]: shapes[last]})


def _value(spec: VariableSpec, operator: int, known: Mapping[tuple[int, str], Array] | None) -> Array | None:
    if known is not None:
        value = known.get((operator, spec.name))
        return None if value is None else value.astype(np.float32)
    if isinstance(spec.initialiser, Values | Constant):
        return spec.initialiser.fill(spec.shape, np.random.default_rng(0)).astype(np.float32)
    return None
