"""A program: the ordered list of a dataflow's prepared kernels, with its memory plan. It can be printed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossbow.compile.memory import MemoryPlan
from crossbow.compile.model import Layouts, ModelLayout
from crossbow.dataflow.graph import Graph
from crossbow.dataflow.validate import infer_shapes, input_shapes
from crossbow.kernels.interface import Call, GradientBlock, PreparedKernel
from crossbow.types import Array, Shape, Tensor


@dataclass(frozen=True)
class ArenaPlace:
    """A tensor in the arena."""

    offset: int
    tensor: Tensor

    def array(self, memory: Memory) -> Array:
        return self.tensor.view(memory.arena[self.offset : self.offset + self.tensor.nbytes])

    def same(self, one: Memory, other: Memory) -> bool:
        return one.arena is other.arena

    def __str__(self) -> str:
        return f"arena+{self.offset}"


@dataclass(frozen=True)
class VectorPlace:
    """A variable or statistic in one of the replica's vectors, or (flat) a gradient as a vector."""

    vector: str
    """"weights", "gradient", "statistics" or "statistics_next"; "narrow_weights" or "narrow_gradient" with 16 bits."""
    operator: int
    name: str
    label: str
    """Operator and variable, for describe()."""
    flat: bool = False

    def array(self, memory: Memory) -> Array:
        vector = memory.vectors[self.vector]
        layout = memory.statistics if self.vector.startswith("statistics") else memory.model
        segment = layout.segments[self.operator, self.name]
        return segment.flat(vector) if self.flat else segment.view(vector)

    def same(self, one: Memory, other: Memory) -> bool:
        return one.vectors[self.vector] is other.vectors[self.vector]

    def __str__(self) -> str:
        return f"{self.vector}[{self.label}]"


@dataclass(frozen=True)
class WholeVector:
    """One of the replica's vectors with all its variables; or "scaling", the state of the loss scale."""

    vector: str

    def array(self, memory: Memory) -> Array:
        return memory.vectors[self.vector]

    def same(self, one: Memory, other: Memory) -> bool:
        return one.vectors[self.vector] is other.vectors[self.vector]

    def __str__(self) -> str:
        return self.vector


@dataclass(frozen=True)
class NamedPlace:
    """One of the arrays that the runtime owns: state, slots, slot_labels, slot_positions."""

    name: str

    def array(self, memory: Memory) -> Array:
        return memory.named[self.name]

    def same(self, one: Memory, other: Memory) -> bool:
        return one.named[self.name] is other.named[self.name]

    def __str__(self) -> str:
        return self.name


Place = ArenaPlace | VectorPlace | WholeVector | NamedPlace


@dataclass(frozen=True)
class Memory:
    """Buffers to which a program is bound: a stream's arena, a replica's vectors, the runtime's own arrays."""

    arena: Array
    model: ModelLayout
    vectors: Mapping[str, Array]
    named: Mapping[str, Array]
    statistics: ModelLayout


@dataclass(frozen=True)
class Step:
    """A prepared kernel, its operator, and the location of each of its roles."""

    operator: str
    kernel: PreparedKernel
    places: Mapping[str, Place]
    backward: bool
    elided: bool = False
    """Whether there is no work, because another kernel includes it, or because its output is its input."""

    @property
    def shown(self) -> str:
        return f"({self.kernel.name})" if self.elided else self.kernel.name


@dataclass(frozen=True)
class BoundStep:
    """A call, and the operator to report if it fails."""

    operator: str
    call: Call


@dataclass(frozen=True)
class BoundBlock:
    """A part of a weight gradient: the calls that compute it, its memory, and its location in the replica's vectors."""

    operator: str
    calls: Sequence[Call]
    gradient: Array
    place: slice


class Parts:
    """The calls of a program on given buffers."""

    def __init__(
        self,
        memory: Memory,
        in_blocks: bool,
        steps: Sequence[Step],
        bound: Sequence[Sequence[BoundStep | BoundBlock]],
    ) -> None:
        """bound: the calls of each step."""
        self.memory, self.in_blocks = memory, in_blocks
        self.steps, self.bound = steps, bound
        self.forward: list[BoundStep] = []
        self.backward: list[BoundStep] = []
        self.blocks: list[BoundBlock] = []
        """Weight gradients outside the gradient vector. Each must be used before the next block's calls."""
        for step, calls in zip(steps, bound, strict=True):
            for call in calls:
                if isinstance(call, BoundBlock):
                    self.blocks.append(call)
                else:
                    (self.backward if step.backward else self.forward).append(call)


@dataclass(frozen=True)
class Program:
    """The compiled form of a graph for one batch size."""

    graph: Graph
    batch: Shape
    model: ModelLayout
    """Layout of the variables: weights, gradients, velocities."""
    statistics: ModelLayout
    """Layout of the running statistics."""
    steps: tuple[Step, ...]
    plan: MemoryPlan
    outputs: Mapping[int, ArenaPlace]
    """The location of each vertex's output, by position."""

    @property
    def layouts(self) -> Layouts:
        return self.model, self.statistics

    def bind(self, memory: Memory, *, in_blocks: bool = False, like: Parts | None = None) -> Parts:
        """The calls on these buffers.

        in_blocks: whether weight gradients are computed in blocks, if kernels support it. like: calls of this program
        with the same `in_blocks` for the same thread, on other buffers. Its calls with the same buffers are reused.
        """
        assert like is None or (like.steps is self.steps and like.in_blocks == in_blocks)
        bound: list[Sequence[BoundStep | BoundBlock]] = []
        for number, step in enumerate(self.steps):
            if step.elided:
                bound.append(())
            elif like is not None and all(place.same(memory, like.memory) for place in step.places.values()):
                bound.append(like.bound[number])
            else:
                bound.append(self._bind(step, memory, in_blocks))
        return Parts(memory, in_blocks, self.steps, bound)

    def _bind(self, step: Step, memory: Memory, in_blocks: bool) -> Sequence[BoundStep | BoundBlock]:
        buffers = {role: place.array(memory) for role, place in step.places.items()}
        if in_blocks and step.kernel.blocks is not None:
            return self._bind_blocks(step, step.kernel.blocks(buffers))
        return [BoundStep(step.operator, call) for call in step.kernel.bind(buffers)]

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
        """Size of a vertex's output in bytes, and its location."""
        place = self.outputs.get(order)
        return (0, "") if place is None else (place.tensor.nbytes, str(place))

    def kernels_of(self, order: int) -> str:
        """Names of the kernels that compute a vertex; in brackets, the other kernel that includes it."""
        return ", ".join(self._shown.get(self.graph[order].name, ()))

    @functools.cached_property
    def _shown(self) -> Mapping[str, Sequence[str]]:
        """Text for each operator's kernels in `describe`, by the operator's name."""
        found: dict[str, list[str]] = {}
        for step in self.steps:
            found.setdefault(step.operator, []).append(step.shown)
        return found

    def operations(self) -> dict[str, int]:
        """Multiplications and additions in the products of a task, by operator; operators without products are left
        out. A gradient has those of its operator for each kernel: for the weights, and for the input."""
        shapes, found = infer_shapes(self.graph, self.batch), {}
        for vertex in self.graph:
            of = vertex if vertex.peer is None else self.graph[vertex.peer]
            kernel, steps = of.forward, [step for step in self.steps if step.operator == vertex.name]
            if kernel is not None:
                products = kernel.multiply_adds(*input_shapes(of, self.batch, shapes))
                found[vertex.name] = 2 * products * sum(not step.elided for step in steps)
        return {name: count for name, count in found.items() if count}

    def describe(self) -> str:
        """A table of the steps with kernel, operator and buffers, and the quality of the memory plan."""
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
