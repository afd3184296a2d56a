"""Which operators become one kernel: decided before any kernel is prepared, from the graph alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from crossbow.dataflow.graph import BATCH, Graph, Vertex, consumers
from crossbow.ops import BatchNorm, Conv, ElementWiseOp, InnerProduct, Pool, ReLU
from crossbow.ops.kernel import Kernel

REQUESTS: Mapping[type[Kernel], str] = {
    BatchNorm: "batch_norm",
    Conv: "convolution",
    ElementWiseOp: "weighted_sum",
    InnerProduct: "inner_product",
}
"""Operators that may take the ReLU behind them in, and what their library must be able to fuse for it."""


def relu_fusions(graph: Graph, fusible: Collection[str]) -> dict[int, int]:
    """The position of every ReLU that the operator before it takes in, and the position of that operator.

    It must be the only one that reads that operator's output. Nothing else is lost: gradients need the output of the
    ReLU only. The gradient of a BatchNorm takes in that of its ReLU too, so the one must feed the other only, and
    nothing else may feed that.
    `fusible`: the requests that the kernel library fuses (`KernelLibrary.fused_relu`).
    """
    users, gradients = consumers(graph), _gradients(graph)
    fusions = {}
    for vertex in graph:
        kernel, source = vertex.kernel, vertex.inputs[0] if vertex.inputs else BATCH
        # A class derived from ReLU may be another function.
        if type(kernel) is not ReLU or kernel.mode != "relu" or kernel.negative_slope != 0 or source == BATCH:
            continue
        producer = graph[source].kernel
        request = REQUESTS.get(type(producer)) if isinstance(producer, Kernel) else None
        adds = not isinstance(producer, ElementWiseOp) or producer.type == "sum"
        if request not in fusible or not adds or len(users[source]) != 1:
            continue
        own, before = gradients[vertex.order], gradients[source]
        feeds = all(user in before for gradient in own for user in users[gradient.order])
        fed = all(graph[gradient.inputs[0]] in own for gradient in before)
        if not isinstance(producer, BatchNorm) or (feeds and fed):
            fusions[vertex.order] = source
    return fusions


def pooled_gradients(graph: Graph, fusions: Mapping[int, int]) -> dict[int, int]:
    """For the gradient of a max pooling behind a ReLU: the position of the ReLU's gradient, which can come first.

    The derivative of the ReLU, known from its output, matters only where the maximum of a window is, and there the
    output is that of the pooling. So it is applied to the pooled gradient, which is several times smaller, and the
    output of the ReLU need not be kept. The gradient of the pooling must have no other reader. That of a BatchNorm
    which has taken the ReLU in (`fusions`) does as much without.
    """
    users = consumers(graph)
    found = {}
    for vertex in graph:
        pool = None if vertex.peer is None else graph[vertex.peer]
        if pool is None or type(pool.kernel) is not Pool or pool.kernel.method != "max" or pool.inputs[0] == BATCH:
            continue
        relu, readers = graph[pool.inputs[0]], users[vertex.order]
        if relu.order in fusions and isinstance(graph[fusions[relu.order]].kernel, BatchNorm):
            continue
        if type(relu.kernel) is ReLU and len(readers) == 1 and readers[0].peer == relu.order:
            found[vertex.order] = readers[0].order
    return found


def _gradients(graph: Graph) -> dict[int, list[Vertex]]:
    """For every vertex, the gradient operators whose peer it is."""
    found: dict[int, list[Vertex]] = {vertex.order: [] for vertex in graph}
    for vertex in graph:
        if vertex.peer is not None:
            found[vertex.peer].append(vertex)
    return found
