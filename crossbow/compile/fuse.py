"""Fusion of operators to one kernel, decided from the graph alone before kernels are prepared."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from crossbow.dataflow.graph import BATCH, Graph, Vertex, consumers
from crossbow.kernels.requests import RequestType
from crossbow.ops.kernel import Kernel


def relu_fusions(graph: Graph, fusible: Collection[RequestType]) -> dict[int, int]:
    """Position of every ReLU that is fused into the preceding operator, and position of that operator.

    The ReLU must be the only reader of that operator's output. No other information is lost, because gradients need
    only the output of the ReLU. If the operator's gradient also includes the ReLU's (BatchNorm), the ReLU's gradient
    must be its only input, and must have no other reader. `fusible`: the requests that the kernel library fuses
    (`KernelLibrary.fused_relu`).
    """
    users, gradients = consumers(graph), _gradients(graph)
    fusions = {}
    for vertex in graph:
        kernel, source = vertex.kernel, vertex.inputs[0] if vertex.inputs else BATCH
        if not isinstance(kernel, Kernel) or not kernel.is_relu or source == BATCH:
            continue
        producer = graph[source].kernel
        if not isinstance(producer, Kernel) or producer.takes_relu not in fusible or len(users[source]) != 1:
            continue
        own, before = gradients[vertex.order], gradients[source]
        feeds = all(user in before for gradient in own for user in users[gradient.order])
        fed = all(graph[gradient.inputs[0]] in own for gradient in before)
        if not producer.gradient_takes_relu or (feeds and fed):
            fusions[vertex.order] = source
    return fusions


def pooled_gradients(graph: Graph, fusions: Mapping[int, int]) -> dict[int, int]:
    """For the gradient of a max pooling after a ReLU: the position of the ReLU's gradient, which can be applied first.

    The derivative of the ReLU, which follows from its output, matters only at the maximum of each window, where the
    output equals that of the pooling. So it is applied to the pooled gradient, which is several times smaller, and the
    output of the ReLU need not be stored. The gradient of the pooling must have no other reader. An operator that
    includes the ReLU and its gradient (`fusions`) needs no such step.
    """
    users = consumers(graph)
    found = {}
    for vertex in graph:
        pool = None if vertex.peer is None else graph[vertex.peer]
        if pool is None or pool.forward is None or not pool.forward.picks_largest:
            continue
        (source,) = pool.inputs
        if source == BATCH:
            continue
        relu, readers = graph[source], users[vertex.order]
        if relu.order in fusions and takes_gradient(graph[fusions[relu.order]]):
            continue
        assert relu.forward is not None  # operators read outputs of operators
        if relu.forward.derivative_from_output and len(readers) == 1 and readers[0].peer == relu.order:
            found[vertex.order] = readers[0].order
    return found


def takes_gradient(producer: Vertex) -> bool:
    """Whether an operator with a fused ReLU also includes the ReLU's gradient in its own."""
    return producer.forward is not None and producer.forward.gradient_takes_relu


def _gradients(graph: Graph) -> dict[int, list[Vertex]]:
    """For every vertex, the gradient operators whose peer it is."""
    found: dict[int, list[Vertex]] = {vertex.order: [] for vertex in graph}
    for vertex in graph:
        if vertex.peer is not None:
            found[vertex.peer].append(vertex)
    return found
