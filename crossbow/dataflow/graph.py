"""A graph as data: vertices in execution order. Connected nodes are converted to a graph; derivations return new
graphs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crossbow.dataflow.node import DataflowNode
from crossbow.dataflow.operator import Operator
from crossbow.ops import TotalLoss
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
    predicts: bool = False
    """For an operator with a `prediction`: whether that is computed instead, with the operator's variables."""

    @property
    def kernel(self) -> Kernel | Gradient:
        own = self.operator.kernel
        if not self.predicts:
            return own
        assert isinstance(own, Kernel)
        prediction = own.prediction()
        assert prediction is not None
        return prediction

    @property
    def forward(self) -> Kernel | None:
        """The kernel, unless it is a gradient."""
        kernel = self.kernel
        return kernel if isinstance(kernel, Kernel) else None


Graph = tuple[Vertex, ...]


def build(nodes: Sequence[DataflowNode]) -> Graph:
    """The graph of nodes that are in topological order."""
    position = {id(node): order for order, node in enumerate(nodes)}
    names = unique_names([node.operator for node in nodes])
    # None if an operator is in several nodes: it is then unknown to which of them a gradient that the user connects
    # belongs.
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
    own = {operator.name for operator in operators}  # a user may name an operator "x#2"
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


def loss_weights(found: Sequence[Vertex]) -> tuple[float, ...]:
    """The weights of losses in the sum that training minimises."""
    return tuple(vertex.forward.loss_weight for vertex in found if vertex.forward is not None)


def main_losses(graph: Graph) -> list[Vertex]:
    """The losses that are not auxiliary: one, in a valid graph that is trained or tested."""
    return [vertex for vertex in losses(graph) if vertex.forward is not None and not vertex.forward.is_auxiliary]


def reported_loss(graph: Graph) -> Vertex | None:
    """The vertex whose output is reported as the loss: the weighted sum of all losses, if the graph has one."""
    totals = [vertex for vertex in graph if isinstance(vertex.kernel, TotalLoss)]
    return next(iter([*totals, *losses(graph)]), None)


def reported_measure(graph: Graph) -> Vertex | None:
    """The vertex whose output is reported as the accuracy: the metric that reads the same input as the main loss, or
    else the first metric that is not for auxiliary losses only."""
    read = {vertex.inputs[0] for vertex in main_losses(graph)}
    return min(_main_measures(graph), key=lambda vertex: (vertex.inputs[0] not in read, vertex.order), default=None)


def other_measures(graph: Graph) -> list[Vertex]:
    """The vertices whose outputs tests report beside the accuracy: all other metrics that are not for auxiliary losses
    only."""
    accuracy = reported_measure(graph)
    return [vertex for vertex in _main_measures(graph) if vertex is not accuracy]


def _main_measures(graph: Graph) -> list[Vertex]:
    auxiliary = auxiliary_part(graph)
    return [vertex for vertex in measures(graph) if not auxiliary.intersection(vertex.inputs)]


def auxiliary_part(graph: Graph) -> frozenset[int]:
    """Positions of the auxiliary losses, and of the forward operators that only they, and metrics, need."""
    users = consumers(graph)
    part: set[int] = set()
    for vertex in reversed(graph):
        kernel = vertex.forward
        if kernel is None or isinstance(kernel, TotalLoss):
            continue
        readers = [user for user in users[vertex.order] if _needs(user)]
        if kernel.is_auxiliary or (readers and all(user.order in part for user in readers)):
            part.add(vertex.order)
    return frozenset(part)


def _needs(user: Vertex) -> bool:
    """Whether tests must compute an output because this vertex reads it. They need not for metrics, gradients and the
    sum of all losses."""
    return user.forward is not None and not user.forward.is_measure and not isinstance(user.forward, TotalLoss)


def trains(kernel: Kernel) -> bool:
    """Whether training may change variables of the operator. The answer needs no shapes."""
    return type(kernel).variables is not Kernel.variables and not kernel.is_frozen
