"""Graphs derived from the user's: the training graph with gradients, the check graph, the prediction graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace

from crossbow.dataflow import answers
from crossbow.dataflow.graph import (
    BATCH,
    Graph,
    Vertex,
    auxiliary_part,
    consumers,
    loss_weights,
    losses,
    main_losses,
    measures,
    trains,
)
from crossbow.dataflow.operator import Operator
from crossbow.ops import (
    Accuracy,
    Classify,
    ElementWiseOp,
    GradientDescentOptimiser,
    SoftMax,
    SoftMaxLoss,
    TotalLoss,
)
from crossbow.ops.kernel import Gradient, Kernel
from crossbow.tracebacks import raised_together, users_error
from crossbow.types import GraphError


def derive_training(graph: Graph) -> Graph:
    """Append the sum of the losses if it is needed, the gradient operators, in reverse order, and the optimiser.

    The gradient of an output with several consumers is the sum of the consumers' gradients. The gradient of a loss is
    multiplied by its weight. A graph that already contains a gradient operator is returned unchanged.
    """
    if any(vertex.operator.is_gradient for vertex in graph):
        return graph
    found = main_losses(graph)
    if len(found) != 1:
        names = ", ".join(repr(vertex.name) for vertex in found) or "none"
        others = ", and others that are auxiliary=True" if losses(graph) else ""
        fault = f"a training dataflow has exactly one loss, as SoftMaxLoss{others}. Received: {names}"
        if found:
            fault += ". `Sequential(network, …)` extends the network: for another one, create its nodes anew"
        elif any(
            type(vertex.kernel).prepare is Kernel.prepare for vertex in graph if isinstance(vertex.kernel, Kernel)
        ):
            fault += ". An operator of your own is a loss with is_loss = True; takes_labels = True gives it the labels"
        raise GraphError([fault])
    return _Derivation(graph, found[0]).run()


def with_total_loss(graph: Graph) -> Graph:
    """The graph with the weighted sum of its losses at the end, unless that equals its only loss."""
    found = losses(graph)
    weights = loss_weights(found)
    if len(found) < 2 and all(weight == 1 for weight in weights):
        return graph
    total = Operator("total_loss", TotalLoss(weights=weights))
    return (*graph, Vertex(len(graph), "total_loss", total, tuple(vertex.order for vertex in found)))


class _Derivation:
    """Reverse-mode differentiation of the sum of a graph's losses."""

    def __init__(self, graph: Graph, loss: Vertex) -> None:
        self.forward = graph
        self.loss = loss
        """The main loss."""
        found = losses(graph)
        self.weights = {vertex.order: weight for vertex, weight in zip(found, loss_weights(found), strict=True)}
        """Weights of all losses, by position."""
        self.vertices = list(with_total_loss(graph))
        self.contributions: dict[int, list[int]] = defaultdict(list)
        self.upstream_trains = [False] * len(graph)
        for vertex in graph:
            assert vertex.forward is not None
            self.upstream_trains[vertex.order] = trains(vertex.forward) or any(
                source != BATCH and self.upstream_trains[source] for source in vertex.inputs
            )

    def run(self) -> Graph:
        faults: list[str] = []
        causes: list[BaseException] = []
        updating = []
        for vertex in reversed(self.forward):
            total = self._total(vertex)
            if total is None or not self.upstream_trains[vertex.order]:
                continue
            kernel = vertex.forward
            assert kernel is not None
            for index, source in enumerate(vertex.inputs):
                wanted = source != BATCH and self.upstream_trains[source]
                if not wanted and not (index == 0 and trains(kernel)):
                    continue
                try:
                    gradient = answers.gradient(kernel, index)
                except ValueError as error:
                    faults.append(f"node {vertex.name!r} ({type(kernel).__name__}): {error}")
                    causes += [cause for cause in [users_error(error)] if cause is not None]
                    break
                if gradient is None or (wanted and kernel.takes_indices):
                    faults.append(
                        f"node {vertex.name!r} ({type(kernel).__name__}): expected a gradient, because it lies between "
                        "variables and the loss. Received: none"
                    )
                    break
                order = self._append(self._gradient_name(vertex, index), gradient, (total,), vertex)
                weight = self.weights.get(vertex.order, 1.0)
                if weight != 1 and trains(kernel):
                    faults.append(
                        f"node {vertex.name!r} ({type(kernel).__name__}): expected a weight of 1, because the loss has "
                        f"variables of its own. Received: {weight:g}"
                    )
                    break
                if weight != 1:
                    weighted = ElementWiseOp(coefficients=(weight,))
                    order = self._append(f"{self.vertices[order].name}.weighted", weighted, (order,), None)
                if index == 0 and trains(kernel):
                    updating.append(order)
                if wanted:
                    self.contributions[self._receiver(vertex, source)].append(order)
        if not updating:
            faults.append(f"nothing to train: no operator upstream of the loss {self.loss.name!r} has variables")
        if faults:
            raise GraphError(faults) from raised_together(causes)
        self._append("optimiser", GradientDescentOptimiser(), tuple(updating), None)
        return tuple(self.vertices)

    def _total(self, vertex: Vertex) -> int | None:
        """The vertex whose output is the gradient of this vertex's output: the sum of all contributions."""
        if vertex.order in self.weights:
            return vertex.order
        parts = self.contributions[vertex.order]
        if len(parts) < 2:
            return parts[0] if parts else None
        return self._append(f"{vertex.name}.gradient_sum", ElementWiseOp(), tuple(parts), None)

    def _receiver(self, vertex: Vertex, source: int) -> int:
        """The vertex that receives this gradient: the producer of the input or, if the gradient of a loss bypasses the
        producer, the producer's own input."""
        kernel = vertex.forward
        if (
            kernel is None
            or kernel.gradient_past is None
            or not isinstance(self.forward[source].kernel, kernel.gradient_past)
        ):
            return source
        return self.forward[source].inputs[0]

    @staticmethod
    def _gradient_name(vertex: Vertex, index: int) -> str:
        return f"{vertex.name}.gradient" + (str(index) if len(vertex.inputs) > 1 else "")

    def _append(self, name: str, kernel: Kernel | Gradient, inputs: tuple[int, ...], peer: Vertex | None) -> int:
        operator = Operator(name, kernel)
        if peer is not None:
            operator.peer = peer.operator
        order = len(self.vertices)
        self.vertices.append(Vertex(order, name, operator, inputs, None if peer is None else peer.order))
        return order


def derive_check(graph: Graph) -> Graph:
    """The graph for testing, without gradients, optimiser and training-only operators. The latter include auxiliary
    losses and all operators that only these need. If the graph has no metric, and the loss takes probabilities, an
    Accuracy is added."""
    auxiliary = auxiliary_part(graph)
    kept = _without(
        graph,
        lambda vertex: (
            vertex.forward is None
            or vertex.order in auxiliary
            or isinstance(vertex.forward, GradientDescentOptimiser | TotalLoss)
        ),
        lambda vertex: vertex.forward is not None and vertex.forward.train_only,
    )
    found = losses(kept)
    if len(found) == 1 and not measures(kept):
        source, loss = found[0].inputs[0], found[0].kernel
        if source != BATCH and isinstance(kept[source].kernel, SoftMax):
            ignored_label = loss.ignored_label if isinstance(loss, SoftMaxLoss) else None
            accuracy = Operator("accuracy", Accuracy(ignored_label=ignored_label))
            kept = (*kept, Vertex(len(kept), "accuracy", accuracy, (source,)))
    return with_total_loss(kept)


def derive_prediction(graph: Graph) -> Graph:
    """The graph for prediction: the check graph without operators that take labels. Its last vertex is the prediction:
    a Classify without consumers, if there is exactly one; else the loss' own prediction, if it has one, or the input of
    the loss; or, without a loss, the last vertex."""
    check = derive_check(graph)
    found = losses(check)
    users = consumers(check)
    classes = [v.order for v in check if isinstance(v.kernel, Classify) and not users[v.order]]
    if len(classes) == 1:
        target = classes[0]
    elif found and _predicts(found[0]):
        target = found[0].order
        check = (*check[:target], replace(found[0], predicts=True), *check[target + 1 :])
    elif found:
        target = found[0].inputs[0]
    else:
        target = max((v.order for v in check if v.forward is not None and not v.forward.takes_labels), default=BATCH)
    if target == BATCH:
        loss = f", {found[0].name!r} ({type(found[0].kernel).__name__})," if found else ""
        expected = "expected an operator between the batch and the loss, whose output is the prediction"
        raise GraphError([f"nothing to predict: {expected}. Received: a loss{loss} that reads the batch itself"])
    needed = {target}
    for vertex in reversed(check):
        if vertex.order in needed:
            needed.update(source for source in vertex.inputs if source != BATCH)
    return _without(check, lambda vertex: vertex.order not in needed, lambda vertex: False)


def _predicts(loss: Vertex) -> bool:
    """Whether a loss has a prediction of its own. Raises GraphError."""
    kernel = loss.forward
    assert kernel is not None
    try:
        return answers.prediction(kernel) is not None
    except ValueError as error:
        fault = f"node {loss.name!r} ({type(kernel).__name__}): {error}"
        raise GraphError([fault]) from users_error(error)


def bypass(graph: Graph, positions: Collection[int]) -> Graph:
    """The graph without the vertices at these positions, whose consumers use their first input instead."""
    return _without(graph, lambda vertex: False, lambda vertex: vertex.order in positions)


def _without(graph: Graph, dropped: Callable[[Vertex], bool], bypassed: Callable[[Vertex], bool]) -> Graph:
    """The graph without the dropped vertices and all that depend on them. Consumers of a bypassed vertex use its first
    input instead."""
    place: dict[int, int] = {BATCH: BATCH}
    kept: list[Vertex] = []
    for vertex in graph:
        if dropped(vertex) or any(source not in place for source in vertex.inputs):
            continue
        inputs = tuple(place[source] for source in vertex.inputs)
        if bypassed(vertex):
            place[vertex.order] = inputs[0]
        else:
            place[vertex.order] = len(kept)
            kept.append(replace(vertex, order=len(kept), inputs=inputs, peer=None))
    return tuple(kept)
