"""Import of an ONNX model as a SubGraph."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from crossbow.dataflow import SubGraph
from crossbow.files import checked_path, reason
from crossbow.onnx import data_transform, factorisation, sequences  # noqa: F401 - register translations
from crossbow.onnx.network import Network, check_input_shape
from crossbow.onnx.reading import (  # noqa: F401 - register translations
    activations,
    arithmetic,
    layer_norm,
    layers,
    rearranging,
    resizing,
    response,
    special_cases,
    transposed,
)
from crossbow.onnx.reading.graph import Reader
from crossbow.tracebacks import without_own_frames
from crossbow.types import DataError, GraphError, Phase, Shape, bytes_text

LARGEST_FILE = 1 << 31
"""Maximum size in bytes of a model's file, a limit of the format."""


@without_own_frames
def load(model: str | os.PathLike[str] | onnx.ModelProto, *, input_shape: Shape | None = None) -> SubGraph:
    """Load the network of an ONNX model, with its weights as initial values, to test, train or save it.

    Every node becomes the operator of the same name. Weights, biases and running statistics become initial values
    (`Values`) of variables, which are trained like any others. Every node has its own variables, even if several nodes
    read one initializer. A factor that is one number for a whole tensor becomes a coefficient, which is not trained.

    A `crossbow.Predictor` runs the network without changes. To train it, append a loss at the `tail`: a SoftMaxLoss,
    after a SoftMax unless the model ends with one (also after a LogSoftMax, because the softmax of log-probabilities
    is the probabilities)::

        network = crossbow.onnx.load("model.onnx")
        network.tail.connect_to(DataflowNode(Operator("softmax", SoftMax()))).connect_to(
            DataflowNode(Operator("loss", SoftMaxLoss())))
        dataflow = Dataflow(SubGraph(network.head))

    The model must have one input that is not an initializer, one output, and operators of opset 6 or later. Constant
    expressions are evaluated. Reshape, Transpose, Slice, Split, Pad and similar operators are supported if they keep
    examples separate. The batch size in the model is ignored, because exporters often write that of their example.

    A channels-last model, such as those of Keras, becomes a network that begins with a Transpose: its images are
    (N, H, W, C), with `Dataset(…, channels_last=True)`. Constants that the exporter marks as non-parameters are not
    trained, such as the factors of PyTorch's BatchNorm with affine=False.

    Args:
        model: a path, or a model in memory.
        input_shape: the shape of the input without the batch, (C, H, W). It is required if the model leaves sizes open,
            and defines these sizes; it must agree with the sizes that the model fixes.

    Raises:
        DataError: the file does not exist, or is not an ONNX model.
        GraphError: Crossbow does not support the model, or the input_shape does not agree with the model's. The error
            lists all unsupported nodes, operators and attributes.
    """
    check_input_shape("load", input_shape)
    proto, source = _proto(model)
    if broken := next((text for text in _texts(proto) if isinstance(text, bytes)), None):
        raise DataError(f"{source}: expected names in UTF-8. Received: {broken!r}")
    try:
        network = read(proto, input_shape)
    except GraphError:
        raise
    except Exception as error:  # the model is damaged in a way that no check detects
        raise DataError(f"{source}: expected an ONNX model. Received: {_damage(proto) or repr(error)}") from error
    if proto is not model and (damage := _damage(proto)) is not None:  # only for files; models in memory may be partial
        raise DataError(f"{source}: expected an ONNX model. Received: {damage}")
    if faults := _faults(proto, network):
        raise GraphError(faults)
    return network.subgraph()


def _faults(proto: onnx.ModelProto, network: Network) -> list[str]:
    """Reasons why a network that could be read cannot be trained."""
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
                f"node {step.name!r}: expected a model for testing, as PyTorch exports after model.eval(). "
                f"Received: a {type(step.kernel).__name__} in training mode"
            )
        if step.shape[:1] != next(iter(network.inputs.values())).shape[:1]:
            faults.append(
                f"node {step.name!r}: expected an output with one row for each example. "
                f"Received: {type(step.kernel).__name__}, whose output has shape {step.shape}"
            )
    return faults


def read(model: onnx.ModelProto, input_shape: Shape | None = None) -> Network:
    """The network of a model, which may have several inputs and outputs. Raises GraphError."""
    return Reader(model, input_shape).run()


def _proto(model: str | os.PathLike[str] | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """The model, and its name in errors."""
    if isinstance(model, onnx.ModelProto):
        return model, "load"
    path = checked_path("load", model)
    try:
        if not path.is_file():
            raise DataError(f"{path}: expected an ONNX model. Received: no such file")
        if path.stat().st_size == 0:
            raise DataError(f"{path}: expected an ONNX model. Received: an empty file")
        if path.stat().st_size > LARGEST_FILE:
            expected = f"expected an ONNX model of at most {bytes_text(LARGEST_FILE)}, the limit of the format"
            raise DataError(f"{path}: {expected}. Received: {bytes_text(path.stat().st_size)}")
        proto = onnx.load(path, load_external_data=False)
        _check_external(proto, path)
        onnx.load_external_data_for_model(proto, str(path.parent))
        return proto, str(path)
    except DataError:
        raise
    except Exception as error:  # from protobuf, from the system, or because external data is missing
        raise DataError(f"{path}: expected an ONNX model. Received: {reason(error)}") from error


def _check_external(model: onnx.ModelProto, path: Path) -> None:
    """Raises DataError if an external tensor has no length and its file is longer than the tensor."""
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
    """All names in a model. Invalid names are bytes."""
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
    """The first problem that ONNX's checker finds, or None. The checker stops at unknown operators, so unsupported
    operators must be reported before it runs."""
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        return reason(error)
    return None
