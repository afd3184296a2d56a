"""Operators compute with 16 bits as they declare, or as the operators before them do."""

from __future__ import annotations

from crossbow import Dataflow, SubGraph
from crossbow.compile.precision import narrow_vertices
from crossbow.dataflow.graph import Graph
from crossbow.ops import (
    LRN,
    BatchNorm,
    Conv,
    ElementWiseOp,
    Flatten,
    InnerProduct,
    Noop,
    Pool,
    ReLU,
    SoftMax,
    SoftMaxLoss,
)
from tests.dataflow.networks import chain, node
from tests.support import training


class Wide(InnerProduct):
    """Another class, which might be another function: its tensors and variables are float32's."""


def narrow(graph: Graph) -> list[str]:
    found = narrow_vertices(graph)
    return [vertex.name for vertex in graph if vertex.order in found]


def forward(graph: Graph) -> list[str]:
    return [name for name in narrow(graph) if "gradient" not in name]


CONVOLUTION = Conv(number_of_outputs=2, kernel_size=3)


def test_operators_that_copy_numbers_keep_their_type() -> None:
    """Indices of users and items, for example, are more than 16 bits can tell apart."""
    assert not narrow_vertices(training(Flatten(), Noop(), Wide(number_of_outputs=3)).graph)
    pooled = ReLU(), Pool(kernel_size=2)
    graph = training(CONVOLUTION, *pooled, LRN(), *pooled, Flatten()).graph
    assert forward(graph) == ["Conv0", "ReLU1", "Pool2"]


def test_a_gradient_is_as_its_peer() -> None:
    graph = training(CONVOLUTION, BatchNorm(), ReLU(), Wide(number_of_outputs=3)).graph
    peers = {vertex.name: graph[vertex.peer].name for vertex in graph if vertex.peer is not None}
    found = narrow(graph)
    assert {name for name in peers if name in found} == {name for name, peer in peers.items() if peer in found}
    assert [peers[name] for name in found if name in peers] == ["ReLU2", "BatchNorm1", "Conv0"]


def test_an_operator_of_several_inputs_follows_if_all_are_narrow() -> None:
    """A residual block whose shortcut is narrow, and one whose shortcut is the batch or a float32 operator."""
    for shortcut, expected in ((CONVOLUTION, True), (Noop(), False), (LRN(), False)):
        stem, left, right = node("stem", Noop()), node("left", CONVOLUTION), node("right", shortcut)
        total = node("sum", ElementWiseOp())
        stem.connect_to(left)
        stem.connect_to(right)
        left.connect_to(total)
        right.connect_to(total)
        chain(
            total,
            node("ip", InnerProduct(number_of_outputs=2)),
            node("softmax", SoftMax()),
            node("loss", SoftMaxLoss()),
        )
        assert ("sum" in forward(Dataflow(SubGraph(stem)).graph)) is expected
