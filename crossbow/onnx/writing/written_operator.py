"""One of our operators in its graph, as the function that writes it sees it."""

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
