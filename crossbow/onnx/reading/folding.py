"""Constant folding: evaluation of nodes that do not depend on the input, with limits on its cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
import onnx.reference
import onnx.shape_inference

from crossbow.onnx.reading.node import Numbers
from crossbow.types import GraphError

MOST_NODES = 1_000_000
"""Maximum number of nodes of a graph after its functions are inlined."""


def evaluate(
    proto: onnx.NodeProto, model: onnx.ModelProto, given: Mapping[str, Numbers], room: int
) -> Sequence[Numbers]:
    """The outputs of a node whose inputs are known. Raises ValueError if they have more elements than `room`, and any
    exception that ONNX's evaluator raises."""
    inputs = [onnx.ValueInfoProto(name=name) for name in given]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = onnx.helper.make_graph([proto], "constant", inputs, outputs)
    alone = onnx.helper.make_model(graph, opset_imports=model.opset_import)
    if _elements(proto, alone, given) > room:
        raise ValueError(f"one that is too large, with less than {room:,} elements left for all constants")
    return list(onnx.reference.ReferenceEvaluator(alone).run(None, dict(given)))


def _elements(proto: onnx.NodeProto, alone: onnx.ModelProto, given: Mapping[str, Numbers]) -> int:
    """Number of elements of the outputs, as far as it can be determined without computing them."""
    if not given:
        return 0  # the output of a Constant is in the model
    if proto.op_type == "Range":
        start, limit, delta = (float(given[name].reshape(-1)[0]) for name in proto.input)
        return max(0, math.ceil((limit - start) / delta)) if delta else 0
    model = onnx.ModelProto()
    model.CopyFrom(alone)
    shaped = [onnx.helper.make_tensor_value_info(name, _kind(a), a.shape) for name, a in given.items()]
    del model.graph.input[:]
    model.graph.input.extend(shaped)
    # Only small arrays, such as shapes and counts, determine sizes.
    short = {name: array for name, array in given.items() if array.size <= SHORT and array.dtype.kind in "iuf"}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in short.items())
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return sum(_size(entry) for entry in inferred.graph.output)


SHORT = 64
"""Maximum number of elements of an array that may be a shape or a count."""


def _kind(array: Numbers) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def _size(entry: onnx.ValueInfoProto) -> int:
    """Number of elements of an inferred tensor; 0 if it is unknown."""
    shape = entry.type.tensor_type.shape
    if not entry.type.tensor_type.HasField("shape") or not all(d.HasField("dim_value") for d in shape.dim):
        return 0
    return math.prod(d.dim_value for d in shape.dim)


def check_functions(model: onnx.ModelProto) -> None:
    """Raise GraphError if a model's functions, which may call each other, expand to too many nodes."""
    functions = {(function.domain, function.name): function for function in model.functions}
    known: dict[tuple[str, str], int] = {}

    def count(nodes: Sequence[onnx.NodeProto], calling: frozenset[tuple[str, str]]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            total += 1
            if key in functions:
                if key in calling:
                    expected = "expected functions that do not call themselves"
                    raise GraphError([f"{expected}. Received: {node.op_type!r}, which does"])
                if key not in known:
                    known[key] = count(functions[key].node, calling | {key})
                total += known[key]
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += count(graph.node, calling)
        return total

    nodes = count(model.graph.node, frozenset())
    if nodes > MOST_NODES:
        expected = f"expected functions that expand to at most {MOST_NODES:,} nodes"
        raise GraphError([f"{expected}. Received: {nodes:,} nodes"])
