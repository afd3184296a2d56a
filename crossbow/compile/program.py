"""A program: the flat, ordered list of prepared kernels of a dataflow with its memory plan. It can be printed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from crossbow.compile.memory import MemoryPlan
from crossbow.compile.model import ModelLayout
from crossbow.dataflow.graph import Graph
from crossbow.kernels.interface import Call, GradientBlock, PreparedKernel
from crossbow.types import Array, Shape, Tensor


@dataclass(frozen=True)
class ArenaPlace:
    """A tensor in the arena."""

    offset: int
    tensor: Tensor

    def array(self, memory: Memory) -> Array:
        return self.tensor.view(memory.arena[self.offset : self.offset + self.tensor.nbytes])

    def __str__(self) -> str:
        return f"arena+{self.offset}"


@dataclass(frozen=True)
class VectorPlace:
    """A variable or statistic in one of the replica's vectors, or (flat) a gradient as a vector."""

    vector: str
    """"weights", "gradient", "statistics" or "statistics_next"; "narrow_weights" or "narrow_gradient", of 16 bits."""
    operator: int
    name: str
    label: str
    """For describe(): operator and variable."""
    flat: bool = False

    def array(self, memory: Memory) -> Array:
        vector = memory.vectors[self.vector]
        layout = memory.statistics if self.vector.startswith("statistics") else memory.model
        assert layout is not None
        segment = layout.segments[self.operator, self.name]
        return segment.flat(vector) if self.flat else segment.view(vector)

    def __str__(self) -> str:
        return f"{self.vector}[{self.label}]"


@dataclass(frozen=True)
class WholeVector:
    """One of the replica's vectors, all variables together; or "scaling", what the scale of its gradients is."""

    vector: str

    def array(self, memory: Memory) -> Array:
        return memory.vectors[self.vector]

    def __str__(self) -> str:
        return self.vector


@dataclass(frozen=True)
class NamedPlace:
    """One of the arrays that the runtime owns: state, slots, slot_labels, slot_positions; or a constant."""

    name: str
    constant: Array | None = None

    def array(self, memory: Memory) -> Array:
        if self.constant is None:
            return memory.named[self.name]
        return self.constant if memory.to_device is None else memory.to_device(self.constant)

    def __str__(self) -> str:
        return self.name


Place = ArenaPlace | VectorPlace | WholeVector | NamedPlace


@dataclass(frozen=True)
class Memory:
    """The buffers to which a program is bound: a stream's arena, a replica's vectors, the runtime's own arrays."""

    arena: Array
    model: ModelLayout
    vectors: Mapping[str, Array]
    named: Mapping[str, Array]
    statistics: ModelLayout | None = None
    """Needed where the program has some."""
    to_device: Callable[[Array], Array] | None = None
    """Puts constants where kernels read them, where that is not the host's memory."""


@dataclass(frozen=True)
class Step:
    """One prepared kernel, the operator it belongs to, and the place of each of its roles."""

    operator: str
    kernel: PreparedKernel
    places: Mapping[str, Place]
    backward: bool
    elided: bool = False
    """Whether there is nothing to do: another kernel does it, or what it writes is the memory that it reads."""

    @property
    def shown(self) -> str:
        return f"({self.kernel.name})" if self.elided else self.kernel.name


@dataclass(frozen=True)
class BoundStep:
    """A call, and the operator that a failure of it is reported under."""

    operator: str
    call: Call


@dataclass(frozen=True)
class BoundBlock:
    """A part of a weight gradient: calls that compute it, where it lies, and its place in the replica's vectors."""

    operator: str
    calls: Sequence[Call]
    gradient: Array
    place: slice


@dataclass(frozen=True)
class Parts:
    """The calls of a program on given buffers."""

    forward: list[BoundStep]
    backward: list[BoundStep]
    blocks: list[BoundBlock]
    """Weight gradients that are not in the gradient vector: each is to be used before the next block's calls."""


@dataclass(frozen=True)
class Program:
    """The compiled form of a graph for one batch size."""

    graph: Graph
    batch: Shape
    model: ModelLayout
    """Of the variables: weights, gradients, velocities."""
    statistics: ModelLayout
    """Of what training observes: running means."""
    steps: tuple[Step, ...]
    plan: MemoryPlan
    outputs: Mapping[int, ArenaPlace]
    """The place of each vertex's output, by position."""

    def bind(self, memory: Memory, *, in_blocks: bool = False) -> Parts:
        """The calls on these buffers. in_blocks: leave weight gradients in blocks where kernels offer that."""
        parts = Parts([], [], [])
        for step in self.steps:
            if step.elided:
                continue
            buffers = {role: place.array(memory) for role, place in step.places.items()}
            if in_blocks and step.kernel.blocks is not None:
                parts.blocks.extend(self._bind_blocks(step, step.kernel.blocks(buffers)))
            else:
                calls = [BoundStep(step.operator, call) for call in step.kernel.bind(buffers)]
                (parts.backward if step.backward else parts.forward).extend(calls)
        return parts

    def _bind_blocks(self, step: Step, blocks: Sequence[GradientBlock]) -> list[BoundBlock]:
        place = step.places["weights_gradient"]
        assert isinstance(place, VectorPlace)
        offset = self.model.segments[place.operator, place.name].offset
        return [
            BoundBlock(
                step.operator, block.calls, block.gradient, slice(offset + block.place.start, offset + block.place.stop)
            )
            for block in blocks
        ]

    def output(self, order: int, memory: Memory) -> Array:
        """The output of a vertex, as an array of its logical shape over the arena."""
        return self.outputs[order].array(memory)

    def memory_of(self, order: int) -> tuple[int, str]:
        """Bytes of a vertex's output, and where it lies."""
        place = self.outputs.get(order)
        return (0, "") if place is None else (place.tensor.nbytes, str(place))

    def kernels_of(self, order: int) -> str:
        """The names of the kernels that compute a vertex; in brackets, in which other's that is done."""
        return ", ".join(self._shown.get(self.graph[order].name, ()))

    @functools.cached_property
    def _shown(self) -> Mapping[str, Sequence[str]]:
        """What `describe` shows of each operator's kernels, by its name."""
        found: dict[str, list[str]] = {}
        for step in self.steps:
            found.setdefault(step.operator, []).append(step.shown)
        return found

    def describe(self) -> str:
        """A table of the steps: kernel, operator, buffers; and what the memory plan is worth."""
        rows = [
            (
                str(number),
                step.operator,
                step.shown,
                " ".join(f"{role}={place}" for role, place in step.places.items() if role != "state"),
            )
            for number, step in enumerate(self.steps)
        ]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        lines = [
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in rows
        ]
        plan = self.plan
        lines.append(
            f"arena {plan.arena:,} bytes; lower bound {plan.lower_bound:,}; without reuse {plan.without_reuse:,}; "
            f"model {self.model.parameters:,} parameters in a vector of {self.model.elements:,}"
        )
        return "\n".join(lines)
