"""The interface of an ONNX node for the function that translates it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from crossbow.onnx.network import FILLER, NetworkStep
from crossbow.onnx.training_settings import Settings, with_settings
from crossbow.ops import Kernel
from crossbow.types import Phase

Numbers = NDArray[Any]
LARGEST_CONSTANT = 1 << 28
"""Maximum number of elements of a constant that is computed while a model is read, and of all evaluated constants."""
Border = Sequence[tuple[int, int]]
"""Padding of an image: (before, after) for each spatial dimension."""


class Refused(Exception):  # noqa: N818 - the reader converts it to a fault
    """A node is not supported. The message completes the sentence "node 'x' (Op): …"."""


@dataclass(frozen=True)
class ConstantTensor:
    """A tensor that does not depend on the input."""

    array: Numbers
    varies: bool = False
    """Whether it was computed from the shape of an activation, which depends on the batch size."""
    literal: bool = False
    """Whether it is a number in the graph instead of an initializer."""


class GraphValues(Protocol):
    """The part of a `Reader` that the translation of a node reads and changes."""

    constants: dict[str, ConstantTensor]
    values: dict[str, NetworkStep]
    steps: list[NetworkStep]
    absorbed: dict[int, str]
    borders: dict[str, Border]
    is_from_save: bool

    def sole_consumer(self, node: Node, op_type: str) -> Node | None: ...

    def follower(self, node: Node, op_type: str) -> Node | None: ...


class Node:
    """An ONNX node with its inputs, attributes and results, for the function that translates it."""

    def __init__(self, reader: GraphValues, proto: onnx.NodeProto, name: str, version: int) -> None:
        self.reader, self.proto, self.name, self.version = reader, proto, name, version
        self.is_marked = False
        """Whether `save` wrote the node, according to its mark."""
        self.settings: Settings = {}
        """Training settings of the marked operator."""
        self._attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}

    # Attributes

    def has(self, attribute: str) -> bool:
        return attribute in self._attributes

    def integer(self, name: str, default: int) -> int:
        return int(self._attributes.get(name, default))

    def number(self, name: str, default: float) -> float:
        """A float attribute. ONNX stores single precision; 0.1 becomes the shortest number with the same value."""
        return shortest(self._attributes.get(name, default))

    def text(self, name: str, default: str) -> str:
        value = self._attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        value = self._attributes.get(name, default)
        return None if value is None else tuple(map(int, value))

    # Inputs

    @property
    def inputs(self) -> int:
        """Number of inputs, without missing optional inputs at the end."""
        names = list(self.proto.input)
        while names and not names[-1]:
            names.pop()
        return len(names)

    def given(self, index: int) -> bool:
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def is_constant(self, index: int) -> bool:
        return self.given(index) and self.proto.input[index] in self.reader.constants

    def step(self, index: int = 0) -> NetworkStep:
        """The step that computes an input. Raises Refused for a constant."""
        if self.is_constant(index):
            raise Refused(f"expected input {index} to depend on the network's input. Received: a constant")
        return self.reader.values[self.proto.input[index]]

    def constant(self, index: int, *, varying: bool = False) -> Numbers | None:
        """The value of an input, or None if it is missing. Raises Refused if it depends on the network's input."""
        if not self.given(index):
            return None
        name = self.proto.input[index]
        if name not in self.reader.constants:
            raise Refused(f"expected input {index} ({name!r}) to be a constant. Received: the output of a node")
        constant = self.reader.constants[name]
        if constant.varies and not varying:
            raise Refused(f"expected input {index} ({name!r}) not to depend on the batch size. Received: one that does")
        return constant.array

    def weights(self, index: int) -> Numbers:
        """An input that becomes a variable."""
        array = self.constant(index)
        if array is None:
            raise Refused(f"expected input {index}. Received: none")
        if array.dtype.kind != "f" or array.dtype.itemsize < 4:
            raise Refused(f"expected weights in float32 or float64. Received: {array.dtype}")
        if not np.isfinite(array).all():
            where = f"input {index} ({self.proto.input[index]!r})"
            raise Refused(f"expected finite weights. Received: non-finite values in {where}")
        return array

    def constant_index(self) -> int | None:
        """The index of the constant input of two, or None."""
        return next((index for index in range(2) if self.is_constant(index)), None)

    def is_literal(self, index: int) -> bool:
        """Whether a constant input is a number in the model's code, such as a mean to subtract, and not a parameter."""
        return self.reader.constants[self.proto.input[index]].literal

    def is_filler(self, index: int) -> bool:
        """Whether `save` wrote the input for a variable that Crossbow's operator does not have."""
        return self.reader.is_from_save and self.proto.input[index].endswith(FILLER)

    def single(self, index: int, default: float) -> float:
        """An input with one element, as a number."""
        array = self.constant(index)
        return default if array is None else shortest(array.reshape(-1)[0])

    @property
    def border(self) -> Border | None:
        """Padding of the first input that a preceding Pad has left to this node."""
        return self.reader.borders.get(self.proto.input[0])

    # Results

    def apply(self, kernel: Kernel, *inputs: NetworkStep, part: str = "", phase: Phase = Phase.CHECK) -> NetworkStep:
        """Append a step with an operator, and return it. Raises ValueError if the shapes do not fit.

        `part` distinguishes the steps of one node; the last step has none.
        """
        if self.settings and not part:
            kernel = with_settings(kernel, self.settings)
        shapes = [step.shape for step in inputs]
        shape = kernel.output_shape(*shapes)
        kernel.variables(*shapes)
        kernel.running_statistics(*shapes)
        name = f"{self.name}.{part}" if part else self.name
        made = NetworkStep(name, shape, kernel, inputs, phase, self.is_marked)
        self.reader.steps.append(made)
        return made

    def sole_consumer(self, op_type: str) -> Node | None:
        """The node that reads the output, if it is the only one and of this type."""
        return self.reader.sole_consumer(self, op_type)

    def follower(self, op_type: str) -> Node | None:
        """The `sole_consumer`, unless it has faults that do not depend on its inputs."""
        return self.reader.follower(self, op_type)

    def leave(self, border: Border) -> None:
        """Leave padding of the output to the Conv that is its only reader; this translation returns it unpadded."""
        self.reader.borders[self.proto.output[0]] = border

    def absorb(self, follower: Node) -> None:
        """Include the following node in this translation, which then returns that node's output."""
        self.reader.absorbed[id(follower.proto)] = self.proto.output[0]


def shortest(value: Any) -> float:
    """The number with the fewest digits that has the same value in single precision.

    >>> shortest(np.float32(0.1)), shortest(0.9999999747378752e-5)
    (0.1, 1e-05)
    """
    single = np.float32(value)
    return float(str(single)) if np.isfinite(single) else float(single)
