from __future__ import annotations

import pytest

from crossbow import DataflowNode, Operator, SubGraph
from crossbow.ops import ReLU
from tests.dataflow.networks import node


def test_connect_to_returns_its_argument() -> None:
    first, second = node("first", ReLU()), node("second", ReLU())
    assert first.connect_to(second) is second
    assert first.next == [second]
    assert second.previous == [first]


def test_the_order_of_connections_is_the_order_of_inputs() -> None:
    sources = [node(f"source{i}", ReLU()) for i in range(3)]
    target = node("target", ReLU())
    for source in (sources[2], sources[0], sources[1], sources[0]):
        source.connect_to(target)
    assert target.previous == [sources[2], sources[0], sources[1], sources[0]]


def test_a_shallow_copy_shares_the_operator_and_no_connections() -> None:
    first, second, third = (node(name, ReLU()) for name in "abc")
    first.connect_to(second).connect_to(third)
    copy = second.shallow_copy()
    assert copy is not second
    assert copy.operator is second.operator
    assert (copy.previous, copy.next) == ([], [])


@pytest.mark.parametrize("wrong", [ReLU(), Operator("relu", ReLU()), None])
def test_it_connects_to_nodes_and_subgraphs_only(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"node 'a' connects to a DataflowNode or a SubGraph\. Received: "):
        node("a", ReLU()).connect_to(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [ReLU(), None, "relu"])
def test_it_holds_an_operator(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"a node holds an Operator\. Received: "):
        DataflowNode(wrong)  # type: ignore[arg-type]


def test_a_subgraph_is_connected_at_its_ends() -> None:
    before, head, tail, after = (node(name, ReLU()) for name in "abcd")
    head.connect_to(tail)
    middle = SubGraph(head)
    assert before.connect_to(middle) is middle
    assert middle.connect_to(after) is after
    assert [step.operator.name for step in SubGraph(before).nodes] == ["a", "b", "c", "d"]


def test_it_shows_its_name() -> None:
    assert repr(node("conv1", ReLU())) == "DataflowNode('conv1')"
