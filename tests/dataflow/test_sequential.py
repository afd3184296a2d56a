from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from crossbow import Dataflow, DataflowNode, ExecutionContext, GraphError, Operator, Sequential, SubGraph, chain
from crossbow.ops import Conv, ElementWiseOp, InnerProduct, Kernel, Pool, ReLU, SoftMax, SoftMaxLoss
from tests.dataflow.networks import node, wiring
from tests.support import blobs


def names(network: SubGraph) -> list[str]:
    return [step.operator.name for step in network.nodes]


def test_operators_follow_each_other_and_are_numbered_by_type() -> None:
    network = Sequential(Conv(4, 3), ReLU(), Pool(), Conv(8, 3), ReLU(), InnerProduct(10), SoftMax(), SoftMaxLoss())
    graph = wiring(Dataflow(network).graph)
    forward = ["conv1", "relu1", "pool1", "conv2", "relu2", "innerproduct1", "softmax1", "softmaxloss1"]
    assert list(graph)[:8] == forward
    assert [graph[name] for name in forward] == [(source,) for source in ("batch", *forward[:-1])]
    assert repr(network) == f"Sequential({', '.join(forward)})"


def test_a_sequential_computes_what_its_nodes_connected_by_hand_compute() -> None:
    def by_hand() -> SubGraph:
        head, *others = (
            DataflowNode(Operator(kernel))
            for kernel in (InnerProduct(number_of_outputs=4), ReLU(), InnerProduct(number_of_outputs=3), SoftMax())
        )
        head.connect_to(others[0]).connect_to(others[1]).connect_to(others[2]).connect_to(
            DataflowNode(Operator(SoftMaxLoss()))
        )
        return SubGraph(head)

    outputs = []
    data = blobs()
    for network in (Sequential(InnerProduct(4), ReLU(), InnerProduct(3), SoftMax(), SoftMaxLoss()), by_hand()):
        with ExecutionContext(network, data=data, monitors=()) as context:
            context.train(2)
            outputs.append(context.predict(np.asarray(data.train.images)))
    np.testing.assert_array_equal(*outputs)


def test_parts_may_be_named_shared_or_connected_already() -> None:
    shared, end = Operator("shared", InnerProduct(4)), node("end", ReLU())
    network = Sequential(("first", Conv(2, 1)), shared, shared, Operator("own", ReLU()), end)
    assert names(network) == ["first", "shared", "shared", "own", "end"]
    assert network.nodes[1] is not network.nodes[2]
    assert network.tail is end


def test_numbers_of_parts_do_not_repeat() -> None:
    def block() -> Sequential:
        return Sequential(Conv(4, 1), ReLU())

    network = Sequential(Conv(4, 1), ("conv3", Conv(4, 1)), block(), block(), Conv(4, 1))
    assert names(network) == ["conv1", "conv3", "conv2", "relu1", "conv4", "relu2", "conv5"]


def test_names_depend_on_the_network_alone() -> None:
    assert names(Sequential(Conv(4, 1), ReLU())) == names(Sequential(Conv(4, 1), ReLU())) == ["conv1", "relu1"]


def test_a_chain_continues_a_branch() -> None:
    stem = Sequential(Conv(4, 1), ReLU())
    left = chain(stem, Conv(4, 1))
    right = chain(stem, Conv(4, 1), ReLU())
    end = chain([left, right], ElementWiseOp("sum"), SoftMax(), SoftMaxLoss())
    graph = wiring(Dataflow(stem).graph)
    assert end.operator.name == "softmaxloss1"
    assert (graph["conv2"], graph["conv3"]) == (("relu1",), ("relu1",))
    assert graph["elementwiseop1"] == ("conv2", "relu2")


def test_nodes_that_are_connected_later_belong_to_it_and_its_tail_stays() -> None:
    body = Sequential(Conv(4, 1), ReLU())
    for name in "ab":
        body.connect_to(node(name, ReLU()))
    assert names(body) == ["conv1", "relu1", "a", "b"]
    assert body.tail is body.nodes[1]


def test_a_subgraph_continues_at_its_tail() -> None:
    head = node("a", ReLU())
    head.connect_to(node("b", ReLU()))
    assert names(Sequential(SubGraph(head), ReLU())) == ["a", "b", "relu1"]


def without_parentheses() -> object:
    return Sequential(ReLU)  # type: ignore[arg-type]


def in_the_middle() -> object:
    first, second = node("a", ReLU()), node("b", ReLU())
    first.connect_to(second)
    return Sequential(second, ReLU())


def twice() -> object:
    block = Sequential(Conv(4, 1), ReLU())
    return Sequential(block, block)


def sources_alone() -> object:
    return chain([node("a", ReLU())])


def sources_that_are_kernels() -> object:
    return chain([ReLU()], ElementWiseOp("sum"))  # type: ignore[list-item]


WRONG: list[tuple[Callable[[], object], str]] = [
    (Sequential, r"expected at least one operator, as Conv\(16, 3\)\. Received: none"),
    (
        without_parentheses,
        r"expected operators .*\. Received: <class '.*ReLU'>\. Did you mean ReLU\(\)\?",
    ),
    (lambda: Sequential(3), r"expected operators as Conv\(16, 3\) .*, nodes or subgraphs\. Received: 3"),  # type: ignore[arg-type]
    (lambda: Sequential(("a", 3)), r"expected operators .*\. Received: \('a', 3\)"),  # type: ignore[arg-type]
    (twice, r"expected every node once; `shallow_copy` shares variables\. Received: 'relu1' twice"),
    (in_the_middle, r"node 'b': input 'a' cannot be reached from the head 'b'"),
    (sources_alone, r"expected a list of nodes, and then .*\. Received: \[DataflowNode\('a'\)\], and 0 parts after it"),
    (sources_that_are_kernels, r"expected a list of nodes, .*\. Received: \[ReLU\(.*\], and 1 parts after it"),
]


@pytest.mark.parametrize(("build", "message"), WRONG)
def test_what_cannot_be_connected_is_rejected(build: Callable[[], object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build()


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (Conv(16, 3), Conv(number_of_outputs=16, kernel_size=3)),
        (Conv(16), Conv(number_of_outputs=16, kernel_size=1)),
        (InnerProduct(10), InnerProduct(number_of_outputs=10)),
        (Pool("average", 3), Pool(method="average", kernel_size=3)),
        (ReLU("tanh"), ReLU(mode="tanh")),
        (ElementWiseOp("max"), ElementWiseOp(type="max")),
    ],
)
def test_the_main_fields_of_operators_may_be_positional(short: Kernel, long: Kernel) -> None:
    assert short == long
