"""A graph as data: vertices in execution order. Connected nodes are converted to a graph; derivations return new
graphs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crossbow.dataflow.node import DataflowNode
from crossbow.dataflow.operator import Operator
from crossbow.ops.kernel import Gradient, Kernel

BATCH = -1
"""Index of an input that is the batch's examples."""


@dataclass(frozen=True)
class Vertex:
    """An operator at its position in the execution order. `inputs` are positions of other vertices, or BATCH."""

    order: int
    name: str
    operator: Operator
    inputs: tuple[int, ...]
    peer: int | None = None
    """For a gradient operator: the position of the vertex that it differentiates."""

    @property
    def kernel(self) -> Kernel | Gradient:
        return self.operator.kernel

    @property
    def forward(self) -> Kernel | None:
        """The kernel, unless it is a gradient."""
        return self.operator.kernel if isinstance(self.operator.kernel, Kernel) else None


Graph = tuple[Vertex, ...]


def build(nodes: Sequence[DataflowNode]) -> Graph:
    """The graph of nodes that are in topological order."""
    position = {id(node): order for order, node in enumerate(nodes)}
    names = unique_names([node.operator for node in nodes])
    # None if an operator is in several nodes: a gradient that the user connects cannot tell which of them it belongs
    # to.
    place: dict[int, int | None] = {}
    for order, node in enumerate(nodes):
        place[id(node.operator)] = None if id(node.operator) in place else order
    return tuple(
        Vertex(
            order,
            names[id(node.operator)],
            node.operator,
            tuple(position[id(source)] for source in node.previous) or (BATCH,),
            None if node.operator.peer is None else place.get(id(node.operator.peer)),
        )
        for order, node in enumerate(nodes)
    )


def unique_names(operators: Sequence[Operator]) -> dict[int, str]:
    """A unique name for every operator (by id): its own name, with #2, #3, … appended if several share it."""
    own = {operator.name for operator in operators}  # a user may call one "x#2"
    given: set[str] = set()
    numbers: dict[str, Iterator[int]] = {}
    names: dict[int, str] = {}
    for operator in operators:
        if id(operator) not in names:
            name = operator.name
            if name in given:
                numbered = (f"{name}#{number}" for number in numbers.setdefault(name, itertools.count(2)))
                name = next(free for free in numbered if free not in own and free not in given)
            given.add(name)
            names[id(operator)] = name
    return names


def consumers(graph: Graph) -> list[list[Vertex]]:
    """For every vertex, the vertices that use its output, in order (twice if they use it twice)."""
    found: list[list[Vertex]] = [[] for _ in graph]
    for vertex in graph:
        for source in vertex.inputs:
            if source != BATCH:
                found[source].append(vertex)
    return found


def losses(graph: Graph) -> list[Vertex]:
    return [vertex for vertex in graph if vertex.forward is not None and vertex.forward.is_loss]


def measures(graph: Graph) -> list[Vertex]:
    return [vertex for vertex in graph if vertex.forward is not None and vertex.forward.is_measure]


def trains(kernel: Kernel) -> bool:
    """Whether the operator may have variables. This is known before shapes are."""
    return type(kernel).variables is not Kernel.variables
