"""An independent check of a program's memory: which value lies in every byte of the arena, step by step.

Nothing of the compiler is used but its result. What a step reads and writes is worked out again from the graph: the
output of a vertex, what it keeps for its gradient, the batch. A step must find, in every byte of what it reads, the
value that the graph says; so a buffer that was overwritten while it was still needed is found wherever it happened.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from crossbow.compile import Program
from crossbow.compile.memory import ALIGNMENT
from crossbow.compile.program import ArenaPlace, Step
from crossbow.dataflow.graph import BATCH, Graph, Vertex, consumers
from crossbow.ops import Gradient, Pool, ReLU

Value = Hashable
NOTHING = ("nothing",)


def _sum_after(graph: Graph, vertex: Vertex) -> Vertex:
    """The sum that reads a vertex."""
    (total,) = (v for v in graph if v.forward is not None and v.forward.is_sum and vertex.order in v.inputs)
    return total


def _vertex_value(graph: Graph, vertex: Vertex, role: str) -> Value:
    if role == "addend":
        (other,) = set(_sum_after(graph, vertex).inputs) - {vertex.order}
        return ("output", other)
    if role == "addend_gradient":
        assert vertex.peer is not None
        total = _sum_after(graph, graph[vertex.peer])
        gradients = [v for v in graph if v.peer == total.order and isinstance(v.kernel, Gradient)]
        (other,) = (v for v in gradients if total.inputs[v.kernel.input] != vertex.peer)  # type: ignore[union-attr]
        return ("output", other.order)
    if isinstance(vertex.kernel, Gradient):
        if role == "output_gradient":
            return ("output", vertex.inputs[0])
        if role == "input_gradient":
            return ("output", vertex.order)
        assert vertex.peer is not None
        vertex = graph[vertex.peer]
    if role == "logits":  # of a loss: what the SoftMax before it reads
        (source,) = graph[vertex.inputs[0]].inputs
        return ("batch",) if source == BATCH else ("output", source)
    if role.startswith("input"):
        source = vertex.inputs[int(role.removeprefix("input"))]
        return ("batch",) if source == BATCH else ("output", source)
    assert role in ("output", "kept"), role
    return (role, vertex.order)


class _Arena:
    def __init__(self, size: int) -> None:
        self.values: list[Value] = [NOTHING]
        self.bytes = np.zeros(size, np.int32)

    def write(self, place: ArenaPlace, value: Value) -> None:
        self.values.append(value)
        self.bytes[place.offset : place.offset + place.tensor.nbytes] = len(self.values) - 1

    def faults(self, place: ArenaPlace, value: Value) -> set[Value]:
        """What lies there instead of the value."""
        found = {self.values[i] for i in np.unique(self.bytes[place.offset : place.offset + place.tensor.nbytes])}
        return found - {value}


def check_memory(program: Program) -> int:
    """Raise AssertionError where a value is overwritten too early. Returns how many outputs are written in place.

    The names of the graph's vertices must differ; nodes must not share operators that have variables.
    """
    names = Values(program)
    arena = _Arena(program.plan.arena)
    in_place = 0
    running = [step for step in program.steps if not step.backward] + [step for step in program.steps if step.backward]
    for number, step in enumerate(running):
        where = f"step {number}, {step.operator}: {step.kernel.name}"
        places = {role: place for role, place in step.places.items() if isinstance(place, ArenaPlace)}
        for role, place in places.items():
            assert place.offset % ALIGNMENT == 0, (where, role)
            assert 0 <= place.offset <= place.offset + place.tensor.nbytes <= program.plan.arena, (where, role)
        if step.elided:
            continue
        values = {role: names.of(step, role, number) for role in places}
        reads = [role for role in places if role in step.kernel.reads]
        writes = [role for role in places if role in step.kernel.writes or role == "workspace"]
        for role in reads:
            assert not (instead := arena.faults(places[role], values[role])), (where, role, values[role], instead)
        for role in writes:
            for other in places:
                if other != role and _overlap(places[role], places[other]):
                    assert step.kernel.in_place == (other, role), f"{where}: {role} lies over {other}"
                    assert places[role].offset == places[other].offset, f"{where}: {role} is shifted against {other}"
                    in_place += 1
        for role in writes:
            arena.write(places[role], values[role])
    _check_results(program, arena, names)
    return in_place


class Values:
    """The logical value behind every role of a program's steps, worked out from the graph."""

    def __init__(self, program: Program) -> None:
        self.graph = program.graph
        self.vertex_of = {vertex.name: vertex for vertex in program.graph}
        assert len(self.vertex_of) == len(program.graph)
        self.pooled = _pooled_gradients(program)
        self.same = self._same_values(program)

    def of(self, step: Step, role: str, number: int) -> Value:
        """The value behind a role of step `number`: the first of those that are the same."""
        return self.first(self._named(step, role, number))

    def first(self, value: Value) -> Value:
        while value in self.same:
            value = self.same[value]
        return value

    def _named(self, step: Step, role: str, number: int) -> Value:
        if role == "workspace":
            return (role, number)
        if role == "labels":
            return (role,)
        if step.operator == "batch":
            return ("batch",)
        vertex = self.vertex_of[step.operator]
        if step.operator in self.pooled:  # applied to the gradient of the pooling's output, before the pooling's
            behind = self.pooled[step.operator]
            if role == "input_gradient":
                return ("masked", behind.order)
            return _vertex_value(self.graph, behind, role)
        if role == "output_gradient" and vertex in self.pooled.values():
            return ("masked", vertex.order)
        return _vertex_value(self.graph, vertex, role)

    def _is_sum(self, order: int) -> bool:
        kernel = self.graph[order].forward
        return kernel is not None and kernel.is_sum

    def _same_values(self, program: Program) -> dict[Value, Value]:
        """What elided steps say: for a value the earlier one that it is, or that is written as this one at once."""
        same: dict[Value, Value] = {}
        for number, step in enumerate(program.steps):
            if not step.elided:
                continue
            vertex = self.vertex_of[step.operator]
            if step.kernel.alias is None:  # another kernel does it: that of the vertex before, or of the peer's
                assert not step.places
                if vertex.peer is None or not self._is_sum(vertex.peer):  # whose gradient is written with another one
                    same["output", vertex.order] = ("output", max(vertex.inputs))
            else:
                source, target = (step.places[role] for role in step.kernel.alias)
                assert isinstance(source, ArenaPlace)
                assert isinstance(target, ArenaPlace)
                assert (source.offset, source.tensor.nbytes) == (target.offset, target.tensor.nbytes), step.operator
                before, after = (self._named(step, role, number) for role in step.kernel.alias)
                same[after] = before
        return same


def _pooled_gradients(program: Program) -> dict[str, Vertex]:
    """For the name of a ReLU's gradient that runs before that of the max pooling behind it, the latter."""
    elided = {step.operator for step in program.steps if step.elided and step.kernel.alias is None}
    found = {}
    for step in program.steps:
        if not step.elided and step.operator in elided:
            vertex = next(vertex for vertex in program.graph if vertex.name == step.operator)
            behind = program.graph[vertex.inputs[0]]
            relu, pool = (program.graph[v.peer or 0] for v in (vertex, behind))
            assert isinstance(relu.kernel, ReLU)
            assert isinstance(pool.kernel, Pool)
            assert pool.kernel.method == "max"
            assert pool.inputs == (relu.order,)
            found[step.operator] = behind
    return found


def _check_results(program: Program, arena: _Arena, names: Values) -> None:
    """Losses, measures and loose ends are read when the task has ended: they must still be there."""
    for vertex, users in zip(program.graph, consumers(program.graph), strict=True):
        kernel = vertex.forward
        if (
            kernel is not None
            and vertex.order in program.outputs
            and (kernel.is_loss or kernel.is_measure or not users)
        ):
            instead = arena.faults(program.outputs[vertex.order], names.first(("output", vertex.order)))
            assert not instead, (vertex.name, instead)


def _overlap(one: ArenaPlace, other: ArenaPlace) -> bool:
    return one.offset < other.offset + other.tensor.nbytes and other.offset < one.offset + one.tensor.nbytes
