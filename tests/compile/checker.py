"""An independent check of a program's memory: which value lies in every byte of the arena, step by step.

Nothing of the compiler is used but its result. What a step reads and writes is worked out again from the graph: the
output of a vertex, what it keeps for its gradient, the batch. A step must find, in every byte of what it reads, the
value that the graph says; so a buffer that was overwritten while it was still needed is found wherever it happened.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from crossbow.compile import Program
from crossbow.compile.memory import ALIGNMENT
from crossbow.compile.program import ArenaPlace, Step
from crossbow.dataflow.graph import BATCH, Graph, Vertex, consumers
from crossbow.ops import Gradient

Value = Hashable
NOTHING = ("nothing",)


def _vertex_value(graph: Graph, vertex: Vertex, role: str) -> Value:
    if isinstance(vertex.kernel, Gradient):
        if role == "output_gradient":
            return ("output", vertex.inputs[0])
        if role == "input_gradient":
            return ("output", vertex.order)
        assert vertex.peer is not None
        vertex = graph[vertex.peer]
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
    graph = program.graph
    vertex_of = {vertex.name: vertex for vertex in graph}
    assert len(vertex_of) == len(graph)
    arena = _Arena(program.plan.arena)
    same = _same_values(program, vertex_of)
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
        values = {role: _first(same, step_value(graph, vertex_of, step, role, number)) for role in places}
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
    _check_results(program, arena, same)
    return in_place


def _same_values(program: Program, vertex_of: Mapping[str, Vertex]) -> dict[Value, Value]:
    """What elided steps say: for a value the earlier one that it is, or that is written as this one at once."""
    same: dict[Value, Value] = {}
    for number, step in enumerate(program.steps):
        if not step.elided:
            continue
        vertex = vertex_of[step.operator]
        if step.kernel.alias is None:  # another kernel does it: that of the vertex before, or of the peer's
            assert not step.places
            same["output", vertex.order] = ("output", vertex.inputs[0])
        else:
            source, target = (step.places[role] for role in step.kernel.alias)
            assert isinstance(source, ArenaPlace)
            assert isinstance(target, ArenaPlace)
            assert (source.offset, source.tensor.nbytes) == (target.offset, target.tensor.nbytes), step.operator
            before, after = (step_value(program.graph, vertex_of, step, role, number) for role in step.kernel.alias)
            same[after] = before
    return same


def _first(same: Mapping[Value, Value], value: Value) -> Value:
    while value in same:
        value = same[value]
    return value


def step_value(graph: Graph, vertex_of: Mapping[str, Vertex], step: Step, role: str, number: int) -> Value:
    """The logical value behind a role of step `number`."""
    if role == "workspace":
        return (role, number)
    if role == "labels":
        return (role,)
    return ("batch",) if step.operator == "batch" else _vertex_value(graph, vertex_of[step.operator], role)


def _check_results(program: Program, arena: _Arena, same: Mapping[Value, Value]) -> None:
    """Losses, measures and loose ends are read when the task has ended: they must still be there."""
    for vertex, users in zip(program.graph, consumers(program.graph), strict=True):
        kernel = vertex.forward
        if (
            kernel is not None
            and vertex.order in program.outputs
            and (kernel.is_loss or kernel.is_measure or not users)
        ):
            instead = arena.faults(program.outputs[vertex.order], _first(same, ("output", vertex.order)))
            assert not instead, (vertex.name, instead)


def _overlap(one: ArenaPlace, other: ArenaPlace) -> bool:
    return one.offset < other.offset + other.tensor.nbytes and other.offset < one.offset + one.tensor.nbytes
