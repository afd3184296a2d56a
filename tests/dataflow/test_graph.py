from __future__ import annotations

from crossbow import Operator, SubGraph
from crossbow.dataflow.graph import build, consumers, losses, measures, trains, unique_names
from crossbow.ops import Accuracy, Conv, ElementWiseOp, InnerProduct, ReLU, SoftMax
from tests.dataflow.networks import branched, chain, inner_product, node, wiring


def test_build_makes_vertices_of_nodes() -> None:
    assert wiring(build(SubGraph(branched()).nodes)) == {
        "conv1": ("batch",),
        "tanh": ("conv1",),
        "conv2": ("tanh",),
        "relu": ("conv2",),
        "conv3": ("tanh",),
        "max": ("conv3",),
        "average": ("tanh",),
        "sum": ("relu", "max", "average"),
        "dropout": ("sum",),
        "ip": ("dropout",),
        "softmax": ("ip",),
        "loss": ("softmax",),
        "accuracy": ("softmax",),
    }


def test_inputs_are_in_the_order_of_connections_and_repeat() -> None:
    a, b, total = node("a", ReLU()), node("b", ReLU()), node("sum", ElementWiseOp())
    a.connect_to(b)
    for source in (b, a, b):
        source.connect_to(total)
    graph = build(SubGraph(a).nodes)
    assert graph[2].inputs == (1, 0, 1)
    assert [[user.name for user in users] for users in consumers(graph)] == [["b", "sum"], ["sum", "sum"], []]


def test_vertices_know_their_place() -> None:
    graph = build(SubGraph(branched()).nodes)
    assert [vertex.order for vertex in graph] == list(range(len(graph)))
    assert [vertex.name for vertex in losses(graph)] == ["loss"]
    assert [vertex.name for vertex in measures(graph)] == ["accuracy"]


def test_nodes_that_share_an_operator_share_its_name() -> None:
    ip = inner_product()
    head = chain(ip, node("relu", ReLU()), ip.shallow_copy())
    assert [vertex.name for vertex in build(SubGraph(head).nodes)] == ["ip", "relu", "ip"]


def test_operators_of_one_name_are_numbered() -> None:
    operators = [Operator(name, ReLU()) for name in ("relu", "relu", "x", "relu")]
    assert list(unique_names(operators).values()) == ["relu", "relu#2", "x", "relu#3"]


def test_a_number_never_makes_a_name_that_is_in_use() -> None:
    """Two variables of one name would be one variable in a saved model."""
    for given in (["a", "a", "a#2"], ["a#2", "a", "a"], ["a", "a", "a#2", "a", "a#3", "a#2"]):
        names = list(unique_names([Operator(name, ReLU()) for name in given]).values())
        assert len(set(names)) == len(names), names
        firsts = [given.index(name) for name in set(given)]
        assert all(names[i] == given[i] for i in firsts)  # the first of a name keeps it


def test_what_may_have_variables_trains() -> None:
    assert trains(Conv(number_of_outputs=1))
    assert trains(InnerProduct(number_of_outputs=1))
    assert not any(trains(kernel) for kernel in (ReLU(), SoftMax(), Accuracy(), ElementWiseOp()))
