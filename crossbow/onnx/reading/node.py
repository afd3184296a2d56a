"""An ONNX node as the function that reads it sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crossbow.onnx.network import FILLER, Step
from crossbow.onnx.training_settings import Settings, with_settings
from crossbow.ops import Kernel
from crossbow.types import Phase

if TYPE_CHECKING:
    from crossbow.onnx.reading.graph import Reader

Numbers = NDArray[Any]
LARGEST_CONSTANT = 1 << 28
"""Elements of the largest constant that is made while reading, and of all that are computed together."""
Border = Sequence[tuple[int, int]]
"""What is put around an image: before and behind, for each spatial dimension."""


class Refused(Exception):  # noqa: N818 - not an error of its own: the reader makes a fault of it
    """What a node asks for that Crossbow does not have; the message ends the sentence "node 'x' (Op): …"."""


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on the input."""

    array: Numbers
    varies: bool = False
    """Whether it was computed from the shape of an activation, which depends on the size of the batch."""
    literal: bool = False
    """Whether it stands in the graph as a number, and is no initializer."""


class Node:
    """An ONNX node as its translation sees it."""

    def __init__(self, reader: Reader, proto: onnx.NodeProto, name: str, version: int) -> None:
        self.reader, self.proto, self.name, self.version = reader, proto, name, version
        self.is_marked = False
        """Whether `save` wrote it, which it says itself."""
        self.settings: Settings = {}
        """Of training, of the operator for which it did."""
        self._attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}

    # Attributes

    def has(self, attribute: str) -> bool:
        return attribute in self._attributes

    def integer(self, name: str, default: int) -> int:
        return int(self._attributes.get(name, default))

    def number(self, name: str, default: float) -> float:
        """A float attribute; ONNX stores single precision, and 0.1 comes back as the shortest number that gives it."""
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
        """How many there are; optional ones at the end may be missing."""
        names = list(self.proto.input)
        while names and not names[-1]:
            names.pop()
        return len(names)

    def given(self, index: int) -> bool:
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def is_constant(self, index: int) -> bool:
        return self.given(index) and self.proto.input[index] in self.reader.constants

    def step(self, index: int = 0) -> Step:
        """The step that computes an input. Raises Refused for a constant."""
        if self.is_constant(index):
            raise Refused(f"expected input {index} to depend on the network's input. Received: a constant")
        return self.reader.values[self.proto.input[index]]

    def constant(self, index: int, *, varying: bool = False) -> Numbers | None:
        """The value of an input, None where it is not given. Raises Refused where it depends on the network's input."""
        if not self.given(index):
            return None
        name = self.proto.input[index]
        if name not in self.reader.constants:
            raise Refused(f"expected input {index} ({name!r}) to be a constant. Received: the output of a node")
        constant = self.reader.constants[name]
        if constant.varies and not varying:
            raise Refused(f"expected input {index} ({name!r}) not to depend on the batch size. Received: that it does")
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
            raise Refused(f"expected finite weights. Received: some that are not, in {where}")
        return array

    def constant_index(self) -> int | None:
        """Which of two inputs is a constant."""
        return next((index for index in range(2) if self.is_constant(index)), None)

    def is_literal(self, index: int) -> bool:
        """Whether a constant input is a number of the model's code, as the mean to subtract: no parameter."""
        return self.reader.constants[self.proto.input[index]].literal

    def is_filler(self, index: int) -> bool:
        """Whether `save` wrote an input for a variable that the operator does not have."""
        return self.reader.is_from_save and self.proto.input[index].endswith(FILLER)

    def single(self, index: int, default: float) -> float:
        """An input of one element, as a number."""
        array = self.constant(index)
        return default if array is None else shortest(array.reshape(-1)[0])

    @property
    def border(self) -> Border | None:
        """Zeros around the first input that are left to this node."""
        return self.reader.borders.get(self.proto.input[0])

    # Results

    def apply(self, kernel: Kernel, *inputs: Step, part: str = "", phase: Phase = Phase.CHECK) -> Step:
        """The step of an operator. Raises ValueError where the shapes do not fit.

        `part` tells the steps of one node apart; the last one has none.
        """
        if self.settings and not part:
            kernel = with_settings(kernel, self.settings)
        shapes = [step.shape for step in inputs]
        shape = kernel.output_shape(*shapes)
        kernel.variables(*shapes)
        kernel.running_statistics(*shapes)
        name = f"{self.name}.{part}" if part else self.name
        made = Step(name, shape, kernel, inputs, phase, self.is_marked)
        self.reader.steps.append(made)
        return made

    def behind(self, op_type: str) -> Node | None:
        """The node behind this one, if it is of this type and nothing else reads the output."""
        return self.reader.behind(self, op_type)

    def follower(self, op_type: str) -> Node | None:
        """That node, if nothing is wrong with it whatever its inputs are."""
        return self.reader.follower(self, op_type)

    def leave(self, border: Border) -> None:
        """Leave zeros around the output to the Conv that alone reads it: what this translation returns has none."""
        self.reader.borders[self.proto.output[0]] = border

    def absorb(self, follower: Node) -> None:
        """Take the following node's work too: what this translation returns is its output."""
        self.reader.absorbed[id(follower.proto)] = self.proto.output[0]


def shortest(value: Any) -> float:
    """The number with the fewest digits that is the same in single precision.

    >>> shortest(np.float32(0.1)), shortest(0.9999999747378752e-5)
    (0.1, 1e-05)
    """
    single = np.float32(value)
    return float(str(single)) if np.isfinite(single) else float(single)
