"""Steps of an imported network become nodes."""

from __future__ import annotations

import pytest

from crossbow.onnx.network import Network, NetworkStep, check_input_shape, needed
from crossbow.ops import ElementWiseOp, InnerProduct, Noop, ReLU
from crossbow.types import GraphError

SOURCE = NetworkStep("x", (7, 4))


def step(name: str, *inputs: NetworkStep, shared: bool = False, **settings: object) -> NetworkStep:
    kernel = InnerProduct(number_of_outputs=4, **settings)  # type: ignore[arg-type]
    return NetworkStep(name, (7, 4), kernel, inputs, shared=shared)


def network(*steps: NetworkStep) -> Network:
    return Network({"x": SOURCE}, steps, {"y": steps[-1]})


def test_the_first_operator_is_the_head() -> None:
    first = step("first", SOURCE)
    subgraph = network(first, step("second", first)).subgraph()
    assert [node.operator.name for node in subgraph.nodes] == ["first", "second"]
    assert subgraph.nodes[0].operator.kernel is first.kernel


def test_an_input_that_several_steps_read_has_a_node_of_its_own() -> None:
    first, second = step("first", SOURCE), step("second", SOURCE)
    both = NetworkStep("both", (7, 4), ElementWiseOp(), (second, first))
    head, *_, last = (nodes := network(first, second, both).subgraph().nodes)
    assert (head.operator.name, head.operator.kernel) == ("x", Noop())
    assert [node.operator.name for node in last.previous] == ["second", "first"]  # in the order of inputs
    assert len(nodes) == 4


def test_an_input_that_is_the_output_has_a_node() -> None:
    (node,) = Network({"x": SOURCE}, [], {"x": SOURCE}).subgraph().nodes
    assert (node.operator.name, node.operator.kernel) == ("x", Noop())


def test_steps_share_an_operator_if_they_are_marked_so_and_equal() -> None:
    first = step("shared", SOURCE, shared=True)
    second = step("shared", first, shared=True)
    other = step("shared", second, shared=True, bias=False)
    alone = step("shared", other)
    operators = [node.operator for node in network(first, second, other, alone).subgraph().nodes]
    assert operators[0] is operators[1]
    assert len(set(map(id, operators))) == 3


def test_the_steps_that_an_output_needs() -> None:
    first = step("first", SOURCE)
    second = step("second", first)
    side = NetworkStep("side", (7, 4), ReLU(), (first,))
    assert needed([second], [first, side, second]) == [first, second]
    assert needed([side, second], [first, side, second]) == [first, side, second]
    assert needed([], [first, side]) == []


@pytest.mark.parametrize("shape", [(0, 4), (2, -1), 5, "34", (2.5,), (True, 3)])
def test_an_input_shape_that_is_none(shape: object) -> None:
    with pytest.raises(GraphError, match=r"^save: expected input_shape=\(C, H, W\) or \(features,\), each ≥ 1"):
        check_input_shape("save", shape)  # type: ignore[arg-type]


def test_an_input_shape() -> None:
    check_input_shape("save", None)
    check_input_shape("save", (3, 224, 224))
