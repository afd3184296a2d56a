"""Fusion of operators to one kernel, decided from the graph alone before kernels are prepared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from crossbow.dataflow.graph import BATCH, Graph, Vertex, consumers
from crossbow.kernels.requests import RequestType
from crossbow.ops.kernel import Gradient, Kernel


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


def sum_fusions(
    graph: Graph, fusible: Collection[RequestType], relus: Mapping[int, int], narrow: Collection[int]
) -> dict[int, int]:
    """Position of every sum of two tensors that is fused into the operator of its later term, and of that operator.

    The sum must be the only reader of that operator's output. In the forward part, this is a normalisation, and the
    ReLU after the sum, if there is one, is fused too: it must then be possible that the normalisation's gradient
    includes the ReLU's and writes the gradient of the other term. In the backward part, it is the gradient of a
    convolution's input, which is added to another gradient. `relus`: the fused ReLUs; `narrow`: the operators with
    16-bit tensors, which are not combined with others.
    """
    users, gradients = _readers(graph), _gradients(graph)
    relu_of = {source: relu for relu, source in relus.items()}
    found: dict[int, int] = {}
    for vertex in graph:
        if vertex.forward is None or not vertex.forward.is_sum or BATCH in vertex.inputs:
            continue
        if len(vertex.inputs) != 2 or vertex.inputs[0] == vertex.inputs[1]:
            continue
        addend, last = sorted(vertex.inputs)
        producer = graph[last]
        fits = len(users[last]) == 1 and producer.kernel.takes_sum in fusible
        if not fits or len({order in narrow for order in (vertex.order, addend, last)}) > 1:
            continue
        if producer.forward is None:  # a gradient
            # Another normalisation may write the addend, later than its own position says.
            written = _written_by(graph, addend, found, relu_of, gradients)
            if vertex.order not in relu_of and written < last:
                found[vertex.order] = last
        elif _gradient_masks(vertex, producer, relu_of.get(vertex.order), users, gradients):
            found[vertex.order] = last
    return found


def _gradient_masks(
    vertex: Vertex,
    producer: Vertex,
    relu: int | None,
    users: Sequence[Sequence[Vertex]],
    gradients: Mapping[int, Sequence[Vertex]],
) -> bool:
    """Whether the gradient of a sum's later term can include those of the sum and of the ReLU after it."""
    own, before = gradients[vertex.order], gradients[producer.order]
    if relu is None:
        return True
    if not own and not before:  # no training
        return not gradients[relu]
    of_relu = gradients[relu]
    if len(of_relu) != 1 or len(own) != 2 or len(before) != 1:
        return False
    feeds = all(user in own for user in users[of_relu[0].order])
    toward = {_input_of(gradient, vertex): gradient for gradient in own}
    if not feeds or toward.keys() != set(vertex.inputs):
        return False
    readers = users[toward[min(vertex.inputs)].order]
    fed = list(users[toward[producer.order].order]) == list(before)
    return fed and bool(readers) and all(reader.order > before[0].order for reader in readers)


def _input_of(gradient: Vertex, vertex: Vertex) -> int:
    """The input of a vertex whose gradient a gradient operator computes."""
    assert isinstance(gradient.kernel, Gradient)
    return vertex.inputs[gradient.kernel.input]


def _written_by(
    graph: Graph,
    order: int,
    fusions: Mapping[int, int],
    relu_of: Mapping[int, int],
    gradients: Mapping[int, Sequence[Vertex]],
) -> int:
    """Position of the operator that writes a value. The gradient of the other term of a fused sum with a ReLU is
    written with that of the normalisation."""
    peer = graph[order].peer
    if peer is None or peer not in fusions or peer not in relu_of:
        return order
    return max(order, gradients[fusions[peer]][0].order)


def masked_terms(graph: Graph, fusions: Mapping[int, int], relus: Mapping[int, int]) -> dict[int, int]:
    """For every normalisation with a fused sum and ReLU: the gradient of the sum's other term, which its own gradient
    operator writes. Positions; `fusions` and `relus` as `sum_fusions` and `relu_fusions` return them."""
    sources, found = set(relus.values()), {}
    for total, producer in fusions.items():
        for gradient in _gradients(graph)[total] if total in sources else ():
            if _input_of(gradient, graph[total]) != producer:
                found[producer] = gradient.order
    return found


def pooled_gradients(graph: Graph, fusions: Mapping[int, int], sums: Collection[int] = frozenset()) -> dict[int, int]:
    """For the gradient of a max pooling after a ReLU: the position of the ReLU's gradient, which can be applied first.

    The derivative of the ReLU, which follows from its output, matters only at the maximum of each window, where the
    output equals that of the pooling. So it is applied to the pooled gradient, which is several times smaller, and the
    output of the ReLU need not be stored. The gradient of the pooling must have no other reader. An operator that
    includes the ReLU and its gradient (`fusions`, or a normalisation with one of the `sums`) needs no such step.
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
        source = fusions.get(relu.order, BATCH)
        if source in sums or (source != BATCH and takes_gradient(graph[source])):
            continue
        assert relu.forward is not None  # operators read outputs of operators
        if relu.forward.derivative_from_output and len(readers) == 1 and readers[0].peer == relu.order:
            found[vertex.order] = readers[0].order
    return found


def takes_gradient(producer: Vertex) -> bool:
    """Whether an operator with a fused ReLU also includes the ReLU's gradient in its own."""
    return producer.forward is not None and producer.forward.gradient_takes_relu


def _readers(graph: Graph) -> list[list[Vertex]]:
    """The consumers of every vertex, except the optimiser, which names gradients without reading them."""
    return [[user for user in users if user.forward is None or not user.forward.is_step] for users in consumers(graph)]


def _gradients(graph: Graph) -> dict[int, list[Vertex]]:
    """For every vertex, the gradient operators whose peer it is."""
    found: dict[int, list[Vertex]] = {vertex.order: [] for vertex in graph}
    for vertex in graph:
        if vertex.peer is not None:
            found[vertex.peer].append(vertex)
    return found
