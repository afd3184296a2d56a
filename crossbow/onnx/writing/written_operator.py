"""The interface of an operator in its graph for the function that writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from crossbow.onnx.network import FILLER
from crossbow.onnx.writing.model import Writer
from crossbow.ops import Kernel
from crossbow.types import Array, Shape


@dataclass(frozen=True)
class WrittenOperator:
    """An operator in its graph, to be written as one or several nodes."""

    writer: Writer
    kernel: Kernel
    name: str
    inputs: tuple[str, ...]
    shapes: tuple[Shape, ...]
    """Shapes of the inputs; the first size represents any batch size."""
    shape: Shape
    """Shape of the output."""
    output: str
    variables: Mapping[str, Array]
    mark: str

    def add(self, op_type: str, *inputs: str, part: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output, which is also the node's name. Without `part`, it is the
        operator's output."""
        output = f"{self.output}.{part}" if part else self.output
        node = onnx.helper.make_node(op_type, inputs, [output], name=output, doc_string=self.mark, **attributes)
        self.writer.nodes.append(node)
        return output

    def variable(self, name: str, *, transposed: bool = False, trailing: int = 0) -> str:
        """The initializer of a variable, optionally transposed, or with trailing dimensions of size 1."""
        array = self.variables[name].T if transposed else self.variables[name]
        return self._initializer(f"{self.name}.{name}", array.reshape(array.shape + (1,) * trailing))

    def constant(self, name: str, values: float | Sequence[float] | Array, dtype: type = np.float32) -> str:
        """An initializer that is not a variable."""
        return self._initializer(f"{self.output}.{name}", np.asarray(values, dtype))

    def filler(self, name: str, size: int) -> str:
        """An initializer of zeros, for a variable that the operator does not have."""
        return self._initializer(f"{self.name}.{name}{FILLER}", np.zeros(size, np.float32))

    def _initializer(self, name: str, array: Array) -> str:
        self.writer.initializers[name] = np.ascontiguousarray(array)
        return name

    def fault(self, text: str) -> None:
        self.writer.fault(self.name, self.kernel, text)
