"""Export of a dataflow as an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import onnx

from crossbow.conf import shown
from crossbow.context import ExecutionContext
from crossbow.dataflow import SubGraph
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import BATCH, Graph, build
from crossbow.dataflow.validate import infer_shapes, input_shapes
from crossbow.files import checked_path, write_whole
from crossbow.onnx import data_transform, factorisation, sequences  # noqa: F401 - they fill the tables
from crossbow.onnx.network import ANY_BATCH, check_input_shape
from crossbow.onnx.writing import operators  # noqa: F401 - it fills the table
from crossbow.onnx.writing.model import Writer, make_model
from crossbow.onnx.writing.table import write_operator
from crossbow.ops import Constant, Values
from crossbow.ops.kernel import VariableSpec
from crossbow.predictor import Predictor
from crossbow.tracebacks import without_own_frames
from crossbow.types import Array, GraphError, Shape


@without_own_frames
def save(
    model: ExecutionContext | Predictor | SubGraph, path: str | os.PathLike[str], *, input_shape: Shape | None = None
) -> None:
    """Write the model of a context or a predictor, or a network with known initial values, as an ONNX model.

    For an `ExecutionContext`, the base model is written, with the graph that `context.predict` computes: the check
    dataflow without loss and metrics. Call this between calls of `train`, or in `Monitor.record`. For a `Predictor`,
    the model that it has loaded is written. A `SubGraph` can be written if the initial values of all variables are
    known (`Values`, such as those of a loaded model, or `Constant`).

    The input is named "input" and has the shape (N, …) with N free. It is the input of the first operator, so uint8
    images must first be divided by 255, as a data set does. A DataTransform is written as it is in testing. The nodes
    keep their names, and the output has the name of the node that computes it. Numbers are in single precision, and
    operators are those of opset 20. The file is written atomically; missing directories are created.

    Settings for training that ONNX lacks are stored in the model's metadata, where `load` finds them and other runtimes
    ignore them: multipliers of the learning rate, random windows and mirrors, and the cumulative statistics of a
    BatchNorm ("cma") with their number of batches. Dropout has no effect in prediction, and is omitted.

    Args:
        input_shape: shape of one example, (C, H, W) or (features,). It is required for a `SubGraph`; contexts and saved
            models have one, which another shape may replace if the variables stay the same, as those of convolutions do
            for images of any size.

    Raises:
        GraphError: an operator has no counterpart in ONNX, the shape is missing or does not fit the variables, or a
            subgraph has variables whose values are not known.
        CrossbowError: the context is training, or closed.
        DataError: the file cannot be written.
        TypeError: the model is neither a context, nor a predictor with a model from a file, nor a subgraph.
    """
    if not isinstance(model, ExecutionContext | Predictor | SubGraph) or _is_unsaved(model):
        expected = (
            "expected an ExecutionContext, whose base model is written, a SubGraph with known initial values, or a"
        )
        raise TypeError(f"save: {expected} Predictor with a model from a file. Received: {shown(model)}")
    path = checked_path("save", path)
    check_input_shape("save", input_shape)
    known: Mapping[tuple[int, str], Array] | None
    if isinstance(model, ExecutionContext):
        graph, known = model.prediction_graph, model.operator_variables
        shape = model.data.image_shape if input_shape is None else input_shape
    elif isinstance(model, Predictor):
        assert model.settings is not None
        graph, known = model.prediction_graph, model.operator_variables
        shape = model.settings.image_shape if input_shape is None else input_shape
    else:
        if input_shape is None:
            raise GraphError(["save: expected input_shape=(C, H, W) or (features,) of a SubGraph. Received: none"])
        graph, known, shape = derive_prediction(build(model.nodes)), None, input_shape
    write_whole(path, _onnx_model(graph, (ANY_BATCH, *shape), known).SerializeToString())


def _is_unsaved(model: object) -> bool:
    return isinstance(model, Predictor) and model.settings is None


def _onnx_model(graph: Graph, batch: Shape, known: Mapping[tuple[int, str], Array] | None) -> onnx.ModelProto:
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
            writer.fault(
                vertex.name, kernel, f"expected {unknown} to have known values. Received: random initial values"
            )
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
