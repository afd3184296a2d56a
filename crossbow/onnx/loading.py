"""From an ONNX model to a SubGraph."""

from __future__ import annotations

import os

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
from crossbow.types import DataError, GraphError, Phase, Shape


def load(model: str | os.PathLike[str] | onnx.ModelProto, *, input_shape: Shape | None = None) -> SubGraph:
    """The network of an ONNX model, its weights as initial values: to be tested, trained on, or saved again.

    A node becomes the operator of its name. Weights, biases and running statistics become the initial values
    (`Values`) of variables, which train like any others; every node has variables of its own, even where several
    read one initializer. A factor that is one number for the whole tensor becomes a coefficient, which does not train.

    The result has no loss. Append one at the `tail`, behind a SoftMax if the model ends before it::

        network = crossbow.onnx.load("model.onnx")
        network.tail.connect_to(DataflowNode(Operator("softmax", SoftMax()))).connect_to(
            DataflowNode(Operator("loss", SoftMaxLoss())))
        dataflow = Dataflow(SubGraph(network.head))

    The model must have one input that is no initializer, one output, and operators of opset 6 or later. What can be
    computed without the input is computed. Reshape, Transpose, Squeeze and their kind are read where they flatten,
    or change nothing. The size of the batch is free whatever the model says: exporters often write that of their
    example.

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
        return onnx.load(path), str(path)
    except DataError:
        raise
    except Exception as error:  # protobuf's, the system's, and those of missing external data
        raise DataError(f"{path}: expected an ONNX model. Received: {reason(error)}") from error


def _damage(model: onnx.ModelProto) -> str | None:
    """What ONNX's checker has against a model. It looks at no further operator once one is unknown to it, so that what
    Crossbow lacks is looked for before."""
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        return reason(error)
    return None
