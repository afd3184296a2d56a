"""Construction of an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

import crossbow
from crossbow.onnx.network import ANY_BATCH, MARK
from crossbow.onnx.training_settings import Settings, write_settings
from crossbow.ops import Kernel
from crossbow.types import Array, Shape

OPSET = 20
"""Version of the written ONNX operators: the first one with GELU."""
IR_VERSION = 9
"""Version of the file format that belongs to the operators."""


@dataclass
class Writer:
    """Collects the nodes, initializers and faults of a model."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, Array] = field(default_factory=dict)
    settings: dict[int, Settings] = field(default_factory=dict)
    """Training settings by the operator's position in the graph."""
    faults: list[str] = field(default_factory=list)

    def fault(self, name: str, kernel: Kernel, text: str) -> None:
        self.faults.append(f"node {name!r} ({type(kernel).__name__}): {text}")


def make_model(writer: Writer, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]) -> onnx.ModelProto:
    """The model of the collected nodes, after a check. A first size of ANY_BATCH is left open."""
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
    write_settings(model, writer.settings)
    onnx.checker.check_model(model, full_check=True)
    return model


def _tensor(name: str, shape: Shape) -> onnx.ValueInfoProto:
    sizes = ["N" if size == ANY_BATCH else size for size in shape]
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
