"""Writing an ONNX graph: what the function of an operator sees, and the table of these functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from crossbow.onnx.network import FILLER
from crossbow.ops import Kernel
from crossbow.types import Array, Shape

OPSET = 19
"""The version of the ONNX operators that is written: the first whose average pooling knows dilation."""


@dataclass
class Writer:
    """Nodes and initializers in the making, and what cannot be written."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, Array] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def fault(self, name: str, kernel: Kernel, text: str) -> None:
        self.faults.append(f"node {name!r} ({type(kernel).__name__}): {text}")


@dataclass(frozen=True)
class Place:
    """One of our operators in its graph, to be written as one node or several."""

    writer: Writer
    kernel: Kernel
    name: str
    inputs: tuple[str, ...]
    shapes: tuple[Shape, ...]
    """Of the inputs; the first size stands for any."""
    shape: Shape
    """Of the output."""
    output: str
    variables: Mapping[str, Array]
    mark: str

    def add(self, op_type: str, *inputs: str, part: str = "", **attributes: Any) -> str:
        """A node, and the name of its output, which is also its own. Without `part` that is the operator's output."""
        output = f"{self.output}.{part}" if part else self.output
        node = onnx.helper.make_node(op_type, inputs, [output], name=output, doc_string=self.mark, **attributes)
        self.writer.nodes.append(node)
        return output

    def variable(self, name: str, *, transposed: bool = False, trailing: int = 0) -> str:
        """The initializer of a variable, perhaps transposed, or with so many dimensions of size 1 behind its own."""
        array = self.variables[name].T if transposed else self.variables[name]
        return self._initializer(f"{self.name}.{name}", array.reshape(array.shape + (1,) * trailing))

    def constant(self, name: str, values: float | Sequence[float] | Array, dtype: type = np.float32) -> str:
        """An initializer that is no variable."""
        return self._initializer(f"{self.output}.{name}", np.asarray(values, dtype))

    def filler(self, name: str, size: int) -> str:
        """Zeros for a variable that the operator does not have."""
        return self._initializer(f"{self.name}.{name}{FILLER}", np.zeros(size, np.float32))

    def _initializer(self, name: str, array: Array) -> str:
        self.writer.initializers[name] = np.ascontiguousarray(array)
        return name

    def fault(self, text: str) -> None:
        self.writer.fault(self.name, self.kernel, text)


WRITERS: dict[type[Kernel], Callable[[Place], None]] = {}


def writes(*kinds: type[Kernel]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter a function into the table."""

    def enter(function: Callable[..., None]) -> Callable[..., None]:
        for kind in kinds:
            WRITERS[kind] = function
        return function

    return enter
