from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import DataflowNode, GraphError, SubGraph
from crossbow.ops import ElementWiseOp, ReLU
from tests.dataflow.networks import chain, node


def order(head: DataflowNode) -> list[str]:
    return [step.operator.name for step in SubGraph(head).nodes]


def relus(names: str) -> list[DataflowNode]:
    return [node(name, ReLU()) for name in names]


def test_a_chain_is_in_its_order() -> None:
    assert order(chain(*relus("abcd"))) == ["a", "b", "c", "d"]


def test_branches_keep_the_order_of_their_connections() -> None:
    a, b, c, d, e = relus("abcde")
    end = node("end", ElementWiseOp())
    chain(a, c, d, end)
    chain(a, b, end)
    chain(a, e)
    assert order(a) == ["a", "c", "d", "b", "end", "e"]


def test_a_node_that_is_connected_twice_stands_once() -> None:
    a, end = node("a", ReLU()), node("end", ElementWiseOp())
    a.connect_to(end)
    a.connect_to(end)
    assert order(a) == ["a", "end"]


def test_a_shallow_copy_is_a_node_of_its_own() -> None:
    a, b = relus("ab")
    copy = a.shallow_copy()
    chain(a, b, copy)
    assert order(a) == ["a", "b", "a"]


def test_a_head_alone_is_a_subgraph() -> None:
    assert order(node("a", ReLU())) == ["a"]


def test_a_very_deep_graph_needs_no_recursion() -> None:
    nodes = [node(f"relu{i}", ReLU()) for i in range(20_000)]
    assert SubGraph(chain(*nodes)).nodes == tuple(nodes)


@given(st.data())
def test_every_node_stands_behind_all_that_it_reads(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 12))
    nodes = [node(str(i), ElementWiseOp()) for i in range(count)]
    for i in range(1, count):
        for source in data.draw(st.lists(st.integers(0, i - 1), min_size=1, max_size=3)):
            nodes[source].connect_to(nodes[i])
    found = SubGraph(nodes[0]).nodes
    position = {id(step): i for i, step in enumerate(found)}
    assert sorted(map(id, found)) == sorted(map(id, nodes))
    assert all(position[id(source)] < position[id(step)] for step in found for source in step.previous)


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ("ab bc cb", "b → c → b"),
        ("ab bc ca", "a → b → c → a"),
        ("aa", "a → a"),
        ("ab bd ac ce ed de", "d → e → d"),
    ],
)
def test_a_cycle_is_named(edges: str, cycle: str) -> None:
    nodes = {name: node(name, ElementWiseOp()) for name in "abcde"}
    for source, target in edges.split():
        nodes[source].connect_to(nodes[target])
    with pytest.raises(GraphError) as error:
        SubGraph(nodes["a"])
    # Where the visit begins decides where the cycle begins: any rotation of it is right.
    received = str(error.value).removeprefix("the graph must have no cycle. Received: ").split(" → ")
    assert received[0] == received[-1]
    expected = cycle.split(" → ")[:-1]
    rotations = [expected[i:] + expected[:i] for i in range(len(expected))]
    assert received[:-1] in rotations


def test_nodes_fed_from_outside_are_all_named() -> None:
    a, b, c = relus("abc")
    chain(a, b, c)
    node("left", ReLU()).connect_to(b)
    node("right", ReLU()).connect_to(c)
    with pytest.raises(GraphError) as error:
        SubGraph(a)
    advice = "cannot be reached from the head 'a'; connect it, or start the SubGraph where both meet"
    assert error.value.faults == (f"node 'b': input 'left' {advice}", f"node 'c': input 'right' {advice}")


def test_a_head_in_the_middle_is_fed_from_outside() -> None:
    a, b, c = relus("abc")
    chain(a, b, c)
    with pytest.raises(GraphError, match=r"node 'b': input 'a' cannot be reached from the head 'b'"):
        SubGraph(b)


def test_it_starts_at_a_node() -> None:
    with pytest.raises(TypeError, match=r"a SubGraph starts at a DataflowNode\. Received: ReLU"):
        SubGraph(ReLU())  # type: ignore[arg-type]


def branches() -> SubGraph:
    a, b, c, d, e = relus("abcde")
    end = node("end", ElementWiseOp())
    chain(a, c, d, end)
    chain(a, b, end)
    chain(a, e)
    return SubGraph(a)


@pytest.mark.parametrize(("name", "kept"), [("d", "acd"), ("a", "a"), ("end", ["a", "c", "d", "b", "end"])])
def test_a_part_until_a_node_has_what_that_node_needs(name: str, kept: str) -> None:
    whole = branches()
    part = whole.until(name)
    assert [step.operator.name for step in part.nodes] == list(kept)
    assert part.tail.operator is next(step.operator for step in whole.nodes if step.operator.name == name)
    assert set(map(id, part.nodes)).isdisjoint(map(id, whole.nodes))


def test_what_is_connected_to_a_part_leaves_the_whole_as_it_is() -> None:
    whole = branches()
    whole.until("d").connect_to(node("new", ReLU()))
    assert order(whole.head) == ["a", "c", "d", "b", "end", "e"]


def test_a_node_whose_inputs_repeat_keeps_them_in_a_part() -> None:
    a, end = node("a", ReLU()), node("end", ElementWiseOp())
    a.connect_to(end)
    a.connect_to(end)
    part = SubGraph(a).until("end")
    assert part.tail.previous == [part.head, part.head]
    assert part.head.next == [part.tail, part.tail]


def test_a_part_ends_at_a_node_that_exists_once() -> None:
    with pytest.raises(GraphError, match=r"expected the name of one node\. Received: 'enn'\. Did you mean 'end'\?"):
        branches().until("enn")
    with pytest.raises(GraphError, match=r"Received: 7\. Names: a, c, d, b, end, e"):
        branches().until(7)  # type: ignore[arg-type]
    first = node("twice", ReLU())
    first.connect_to(first.shallow_copy())
    with pytest.raises(GraphError, match=r"Received: 'twice', an operator of 2 nodes"):
        SubGraph(first).until("twice")
