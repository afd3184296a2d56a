"""From an ONNX model to a SubGraph."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from crossbow.dataflow import SubGraph
from crossbow.files import checked_path, reason
from crossbow.onnx import data_transform  # noqa: F401 - it fills the tables
from crossbow.onnx.network import Network, check_input_shape
from crossbow.onnx.reading import (  # noqa: F401 - they fill the table
    activations,
    arithmetic,
    layers,
    rearranging,
    response,
    special_cases,
)
from crossbow.onnx.reading.graph import Reader
from crossbow.types import DataError, GraphError, Phase, Shape, bytes_text

LARGEST_FILE = 1 << 31
"""Bytes of a message in the format that models are written in."""


def load(model: str | os.PathLike[str] | onnx.ModelProto, *, input_shape: Shape | None = None) -> SubGraph:
    """The network of an ONNX model, its weights as initial values: to be tested, trained on, or saved again.

    A node becomes the operator of its name. Weights, biases and running statistics become the initial values
    (`Values`) of variables, which train like any others; every node has variables of its own, even where several
    read one initializer. A factor that is one number for the whole tensor becomes a coefficient, which does not train.

    A network predicts as it is with `crossbow.Predictor`. To train it, append a loss at the `tail`: a SoftMaxLoss,
    behind a SoftMax unless the model ends with one (behind a LogSoftMax too, whose softmax are the probabilities)::

        network = crossbow.onnx.load("model.onnx")
        network.tail.connect_to(DataflowNode(Operator("softmax", SoftMax()))).connect_to(
            DataflowNode(Operator("loss", SoftMaxLoss())))
        dataflow = Dataflow(SubGraph(network.head))

    The model must have one input that is no initializer, one output, and operators of opset 6 or later. What can be
    computed without the input is computed. Reshape, Transpose, Slice, Split, Pad and their kind are read where the
    examples stay apart. The size of the batch is free whatever the model says: exporters often write that of their
    example.

    A model for channels-last images, as Keras' are, begins with a Transpose here, too: its images are (N, H, W, C),
    with `Dataset(…, channels_last=True)`. Constants that the exporter says are no parameters do not train, as the
    factors of PyTorch's BatchNorm with affine=False.

    Args:
        model: a path, or a model in memory.
        input_shape: the sizes of an input without the batch's, (C, H, W). It is needed where the model leaves some of
            them open, and fills in those; the sizes that the model fixes have to be the same.

    Raises:
        DataError: the file is not there, or it is no ONNX model.
        GraphError: what the model needs and Crossbow does not have: every node, operator and attribute of it; or an
            input_shape that is not the model's.
    """
    check_input_shape("load", input_shape)
    proto, source = _proto(model)
    if broken := next((text for text in _texts(proto) if isinstance(text, bytes)), None):
        raise DataError(f"{source}: expected names in UTF-8. Received: {broken!r}")
    try:
        network = read(proto, input_shape)
    except GraphError:
        raise
    except Exception as error:  # it is damaged where nobody would look
        raise DataError(f"{source}: expected an ONNX model. Received: {_damage(proto) or repr(error)}") from error
    if proto is not model and (damage := _damage(proto)) is not None:  # of a file; in memory, models may be unfinished
        raise DataError(f"{source}: expected an ONNX model. Received: {damage}")
    if faults := _faults(proto, network):
        raise GraphError(faults)
    return network.subgraph()


def _faults(proto: onnx.ModelProto, network: Network) -> list[str]:
    """Why a network that could be read is none to train on."""
    faults = []
    for entry in proto.graph.input:
        kind = entry.type.tensor_type.elem_type
        if entry.name in network.inputs and kind not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
            received = onnx.TensorProto.DataType.Name(kind)
            faults.append(f"input {entry.name!r}: expected numbers of type FLOAT or DOUBLE. Received: {received}")
    for what, found in (("input", network.inputs), ("output", network.outputs)):
        if len(found) != 1:
            faults.append(f"expected one {what}. Received: {', '.join(map(repr, found)) or 'none'}")
    for step in network.steps:
        if step.phase is Phase.TRAIN:
            faults.append(
                f"node {step.name!r}: expected a model for testing, as PyTorch exports one after model.eval(). "
                f"Received: a {type(step.kernel).__name__} in training mode"
            )
        if step.shape[:1] != next(iter(network.inputs.values())).shape[:1]:
            faults.append(
                f"node {step.name!r}: expected an output with one row for each example. "
                f"Received: {type(step.kernel).__name__}, whose output has shape {step.shape}"
            )
    return faults


def read(model: onnx.ModelProto, input_shape: Shape | None = None) -> Network:
    """The network of a model, which may have several inputs and outputs here. Raises GraphError."""
    return Reader(model, input_shape).run()


def _proto(model: str | os.PathLike[str] | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """The model, and what to call it."""
    if isinstance(model, onnx.ModelProto):
        return model, "load"
    path = checked_path("load", model)
    try:
        if not path.is_file():
            raise DataError(f"{path}: expected an ONNX model. Received: no such file")
        if path.stat().st_size > LARGEST_FILE:
            expected = f"expected an ONNX model of at most {bytes_text(LARGEST_FILE)}, as the format has it"
            raise DataError(f"{path}: {expected}. Received: {bytes_text(path.stat().st_size)}")
        proto = onnx.load(path, load_external_data=False)
        _check_external(proto, path)
        onnx.load_external_data_for_model(proto, str(path.parent))
        return proto, str(path)
    except DataError:
        raise
    except Exception as error:  # protobuf's, the system's, and those of missing external data
        raise DataError(f"{path}: expected an ONNX model. Received: {reason(error)}") from error


def _check_external(model: onnx.ModelProto, path: Path) -> None:
    """Raises DataError where a tensor in a file of its own does not say how long it is, and the file is longer."""
    for tensor in model.graph.initializer:
        said = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_location != onnx.TensorProto.EXTERNAL or "length" in said:
            continue
        size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * math.prod(tensor.dims)
        file = path.parent / said.get("location", "")
        if file.is_file() and (received := file.stat().st_size - int(said.get("offset", 0))) > size:
            expected = f"expected {bytes_text(size)} for {tensor.name!r}"
            raise DataError(f"{path}: {expected}. Received: a file with {bytes_text(received)}")


def _texts(model: onnx.ModelProto) -> Iterator[str | bytes]:
    """The names that are read, which are bytes where they are broken."""
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
        yield from _texts_of(function.node)
    for entry in (*model.metadata_props, *model.opset_import):
        yield from (entry.key, entry.value) if isinstance(entry, onnx.StringStringEntryProto) else (entry.domain,)
    yield model.producer_name
    yield from _texts_of_graph(model.graph)


def _texts_of_graph(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    for entry in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield entry.name
        for pair in entry.metadata_props:
            yield from (pair.key, pair.value)
    for entry in (*graph.input, *graph.output):
        yield from (dimension.dim_param for dimension in entry.type.tensor_type.shape.dim)
    yield from _texts_of(graph.node)


def _texts_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[str | bytes]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.doc_string, *node.input, *node.output)
        for pair in node.metadata_props:
            yield from (pair.key, pair.value)
        for attribute in node.attribute:
            yield attribute.name
            for graph in (attribute.g, *attribute.graphs):
                yield from _texts_of_graph(graph)


def _damage(model: onnx.ModelProto) -> str | None:
    """What ONNX's checker has against a model. It looks at no further operator once one is unknown to it, so that what
    Crossbow lacks is looked for before."""
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        return reason(error)
    return None
