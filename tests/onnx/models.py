"""Small ONNX models, written out node by node, and what onnxruntime and Crossbow make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from crossbow import Dataflow, Phase, SubGraph
from crossbow.compile import Memory, compile_graph
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import build
from crossbow.host_memory import aligned_zeros
from crossbow.kernels import select_library
from crossbow.kernels.interface import State
from crossbow.onnx import load
from crossbow.runtime.backend import batch_source

Array = NDArray[Any]


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    sizes: Sequence[int | str],
    *,
    output: str = "y",
    opset: int = 17,
    kind: int = onnx.TensorProto.FLOAT,
    **initializers: Array,
) -> onnx.ModelProto:
    """A model with the input "x"; keywords are its initializers."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", kind, sizes)],
        [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, [None] * 2)],
        [onnx.numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def node(op_type: str, inputs: str, output: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    """Inputs separated by blanks; "-" is one that is left out."""
    names = ["" if part == "-" else part for part in inputs.split()]
    return helper.make_node(op_type, names, output.split(), name=name, **attributes)


def constant(name: str, values: Any, dtype: Any = np.float32) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(values, dtype)))


def run_onnx(proto: onnx.ModelProto, **inputs: Array) -> Array:
    """The first output, by onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: Array = session.run(None, inputs)[0]
    return result


def run_crossbow(subgraph: SubGraph, x: Array, *, fast: bool = False) -> Array:
    """What a network with its initial values predicts, compiled: in double precision, or on the fast kernels."""
    graph = derive_prediction(build(subgraph.nodes))
    dtype = np.dtype(np.float32 if fast else np.float64)
    library, _ = select_library("onednn" if fast else "reference", dtype)
    slots, labels = x.astype(dtype)[None], np.zeros((1, len(x)), np.int32)
    source = batch_source(slots, labels, 1.0)
    program = compile_graph(graph, source, library, dtype, phase=Phase.CHECK)
    vectors = {"weights": program.model.new_vector(), "statistics": program.statistics.new_vector()}
    program.model.initialise(vectors["weights"], 0)
    program.statistics.initialise(vectors["statistics"], 0)
    state = np.zeros(State.SIZE, np.int64)
    state[State.EXAMPLES] = len(x)
    named = {"state": state, "slots": slots, "slot_labels": labels}
    memory = Memory(aligned_zeros(program.plan.arena), program.model, vectors, named, program.statistics)
    for step in program.bind(memory).forward:
        step.call()
    return program.output(len(graph) - 1, memory).copy()


X = draw(3, 2, 6, 6)


def same(proto: onnx.ModelProto, x: Array = X) -> SubGraph:
    """Load a model, and compare its outputs with onnxruntime's."""
    network = load(proto)
    np.testing.assert_allclose(run_crossbow(network, x), run_onnx(proto, x=x), rtol=1e-5, atol=1e-5)
    return network


def operators(subgraph: SubGraph) -> list[tuple[str, str]]:
    """Name and class of every operator, in order."""
    return [(node.operator.name, type(node.operator.kernel).__name__) for node in subgraph.nodes]


def kernel_of(subgraph: SubGraph, name: str) -> Any:
    (found,) = {
        id(node.operator): node.operator.kernel for node in subgraph.nodes if node.operator.name == name
    }.values()
    return found


def checking(subgraph: SubGraph) -> Dataflow:
    return Dataflow(subgraph).set_phase(Phase.CHECK)
