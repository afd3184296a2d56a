"""Dataflows as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from crossbow import Dataflow, DataflowNode, Operator, Phase, SubGraph
from crossbow.conf import configuration
from crossbow.dataflow.description import NotDescribedError, describe_dataflows, read_dataflows
from crossbow.dataflow.graph import Graph
from crossbow.ops import (
    Conv,
    DataTransform,
    ElementWiseOp,
    Gaussian,
    Initialiser,
    InnerProduct,
    Kernel,
    Pad,
    ReLU,
    SoftMax,
    SoftMaxLoss,
    SoftMaxLossGradient,
    Uniform,
    Values,
)
from crossbow.scripts.parser import configurations
from crossbow.types import Array, ConfigurationError, DataError
from models.listing import scripts
from tests.dataflow.networks import chain, inner_product, node, perceptron
from tests.operators.table import CASES


def there_and_back(*dataflows: Dataflow, operators: Any = ()) -> list[Dataflow]:
    """As a file would have it: JSON without NaN, and arrays."""
    description, arrays = describe_dataflows(dataflows)
    return read_dataflows(json.loads(json.dumps(description, allow_nan=False)), arrays, operators)


def same(first: Graph, second: Graph) -> bool:
    """Whether graphs have equal operators under equal names, equal connections, and share operators alike."""
    rows = []
    for graph in (first, second):
        numbers: dict[int, int] = {}
        shared = [numbers.setdefault(id(vertex.operator), len(numbers)) for vertex in graph]
        rows.append([(v.order, v.name, v.kernel, v.inputs, v.peer, at) for v, at in zip(graph, shared, strict=True)])
    return rows[0] == rows[1]


def flow(head: DataflowNode, phase: Phase = Phase.CHECK) -> Dataflow:
    return Dataflow(SubGraph(head)).set_phase(phase)


def test_every_row_of_the_table_of_operators() -> None:
    for case in CASES:
        head = DataflowNode(Operator("source", ReLU()))
        target = DataflowNode(Operator("operator", case.kernel))
        for _ in case.shapes:
            head.connect_to(target)
        (read,) = there_and_back(flow(head))
        _, received = read.subgraph.nodes
        assert received.operator.kernel == case.kernel, case
        assert type(received.operator.kernel) is type(case.kernel)


@pytest.mark.slow
@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.name)
def test_every_network_of_the_zoo(script: Any) -> None:
    """With the gradients, and so with the weights of all losses."""
    for variant in script.variants:
        options, defaults = script._options(variant.split())
        source = configurations(options, defaults).data
        options.image_shape, options.classes = source.image_shape, source.number_of_classes
        dataflow = script.build(options)
        (read,) = there_and_back(dataflow)
        assert same(read.graph, dataflow.graph), variant


def test_shared_operators_and_two_dataflows() -> None:
    """The check dataflow has the training dataflow's variables, and an operator may be at several places."""
    shared = Operator("shared", InnerProduct(number_of_outputs=4, weight_initialiser=Uniform(minimum=-1, maximum=2)))
    head, second = DataflowNode(shared), DataflowNode(shared)
    head.connect_to(node("relu", ReLU())).connect_to(second)
    second.connect_to(node("softmax", SoftMax())).connect_to(node("loss", SoftMaxLoss()))
    check = chain(head.shallow_copy(), second.shallow_copy(), node("check", SoftMax()))
    both = [flow(head, Phase.TRAIN), flow(check)]
    read = there_and_back(*both)
    assert [each.phase for each in read] == [Phase.TRAIN, Phase.CHECK]
    for received, expected in zip(read, both, strict=True):
        assert same(received.graph, expected.graph)
    operators = {node.operator for each in read for node in each.subgraph.nodes if node.operator.name == "shared"}
    assert len(operators) == 1


def test_the_order_of_branches() -> None:
    """The order of the nodes follows from that of the connections, which is not always their own order."""
    a, b, c, d = (node(name, ReLU()) for name in "abcd")
    total = node("total", ElementWiseOp())
    for source, target in ((a, c), (a, b), (b, d), (b, c), (c, total), (d, total), (a, total)):
        source.connect_to(target)
    names = [[each.operator.name for each in read.subgraph.nodes] for read in (flow(a), *there_and_back(flow(a)))]
    assert names[0] == names[1]


def test_a_gradient_of_the_users() -> None:
    head = perceptron()
    nodes = SubGraph(head).nodes
    loss, softmax = nodes[-1], nodes[-2]
    loss.connect_to(node("own", SoftMaxLossGradient(), loss))
    (read,) = there_and_back(flow(head, Phase.TRAIN))
    assert same(read.graph, flow(head, Phase.TRAIN).graph)
    assert read.subgraph.nodes[-1].operator.peer is read.subgraph.nodes[-2].operator
    assert softmax.operator.name == "softmax"


def test_arrays_and_unusual_numbers() -> None:
    image = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 2, 2)
    kernels = [
        DataTransform(mean_image=Values(image), scale=(1.0, 2.0, 0.1)),
        Pad(padding=((1, 0),) * 3, value=0.1 + 0.2),
        InnerProduct(number_of_outputs=2, weight_initialiser=Values(image), bias_initialiser=Gaussian(std=1e-30)),
    ]
    described = flow(chain(*(node(f"{number}", kernel) for number, kernel in enumerate(kernels))))
    _, arrays = describe_dataflows([described])
    assert [array.dtype for array in arrays.values()] == [np.float32], "equal arrays are stored once"
    (read,) = there_and_back(described)
    assert [each.operator.kernel for each in read.subgraph.nodes] == kernels


# Classes of the user's own


@configuration
class Power(Kernel):
    """|x|ᵖ, with fields of several kinds."""

    exponent: float = 1.0
    ceiling: float = float("inf")
    steps: list[int] | None = None
    named: dict[str, Any] | None = None
    table: Array | None = None

    def output_shape(self, *inputs: Any) -> Any:
        return inputs[0]


@configuration
class Ones(Initialiser):
    """All ones."""


class Plain(Kernel):
    """Without fields, and without a configuration."""

    def output_shape(self, *inputs: Any) -> Any:
        return inputs[0]


def test_classes_of_the_users() -> None:
    own = Power(exponent=3, steps=[1, 2], named={"a": (1, 2.5), "b": None}, table=None)
    head = chain(
        node("p", own), node("plain", Plain()), node("ip", Conv(number_of_outputs=2, weight_initialiser=Ones()))
    )
    (read,) = there_and_back(flow(head), operators=[Power, Ones, Plain])
    received = read.subgraph.nodes[0].operator.kernel
    assert received == own
    assert isinstance(read.subgraph.nodes[1].operator.kernel, Plain)
    with pytest.raises(
        DataError, match=r"^operator 'p': expected the class Power, which .* operators=\[Power\]\. Received: Ones$"
    ):
        there_and_back(flow(head), operators=[Ones])


def test_an_own_class_named_as_one_of_crossbows() -> None:
    mine = type("ReLU", (Plain,), {})
    head = chain(node("mine", mine()), node("theirs", ReLU()))
    (read,) = there_and_back(flow(head), operators=[mine])
    assert [type(each.operator.kernel) for each in read.subgraph.nodes] == [mine, ReLU]


@pytest.mark.parametrize("bad", [[3], [int], [Power, type("Power", (Plain,), {})]], ids=str)
def test_bad_classes(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^operators: expected .*\. Received: "):
        there_and_back(flow(perceptron()), operators=bad)


@configuration
class WithFunction(Plain):
    """A field that no file can hold."""

    function: Callable[[], None] = print


class Pair(NamedTuple):
    first: int
    second: int


def test_what_cannot_be_described() -> None:
    expected = r"^operator 'f', field 'function' of WithFunction: expected a number, .*\. Received: <built-in"
    with pytest.raises(NotDescribedError, match=expected):
        describe_dataflows([flow(node("f", WithFunction()))])
    pair = Pair(1, 2)  # it would be a tuple when it is read
    with pytest.raises(NotDescribedError, match=r"Received: Pair\(first=1, second=2\)"):
        describe_dataflows([flow(node("p", WithFunction(function=pair)))])

    class Stateful(Plain):
        def __init__(self, value: int) -> None:
            self.value = value

    with pytest.raises(NotDescribedError, match=r"expected a class that is a @configuration\. Received: Stateful"):
        describe_dataflows([flow(node("f", Stateful(3)))])


# Damaged descriptions


def test_an_unknown_operator() -> None:
    description, arrays = describe_dataflows([flow(chain(inner_product(), node("s", SoftMax())))])
    description["operators"][1]["class"] = "SoftMax3"
    with pytest.raises(DataError, match=r"^operator 's': expected an operator of crossbow.ops\. Received: 'SoftMax3'"):
        read_dataflows(description, arrays)


@pytest.mark.parametrize("name", ["Popen", "os.system", "DataflowNode", "VariableSpec", "Gaussian"])
def test_other_classes_are_not_made(name: str) -> None:
    description, arrays = describe_dataflows([flow(node("x", ReLU()))])
    description["operators"][0] |= {"class": name, "fields": {"std": 1.0} if name == "Gaussian" else {}}
    with pytest.raises(DataError, match=r"^operator 'x': expected an operator"):
        read_dataflows(description, arrays)


def test_no_file_is_opened() -> None:
    description, arrays = describe_dataflows([flow(node("x", DataTransform()))])
    description["operators"][0]["fields"]["mean_image"] = "/etc/passwd"
    with pytest.raises(DataError, match=r"expected a mean image as an array\. Received: the name of a file"):
        read_dataflows(description, arrays)


DAMAGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda d: None,
    "a list": lambda d: [],
    "no graphs": lambda d: {"operators": d["operators"]},
    "an empty list of graphs": lambda d: {**d, "graphs": []},
    "no nodes": lambda d: {**d, "graphs": [{"phase": "train", "nodes": []}]},
    "a phase": lambda d: {**d, "graphs": [{**d["graphs"][0], "phase": "night"}]},
    "a field": lambda d: {**d, "operators": [{**d["operators"][0], "fields": {"colour": 3}}, *d["operators"][1:]]},
    "a value": lambda d: {**d, "operators": [{**d["operators"][0], "fields": {"axis": {"x": 1}}}, *d["operators"][1:]]},
    "an operator": lambda d: {**d, "operators": d["operators"][:1]},
    "a peer": lambda d: {**d, "operators": [{**d["operators"][0], "peer": 7}, *d["operators"][1:]]},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_descriptions(damage: str) -> None:
    description, arrays = describe_dataflows([flow(perceptron(), Phase.TRAIN)])
    with pytest.raises(DataError, match=r"^expected the description of a graph"):
        read_dataflows(DAMAGES[damage](description), arrays)


@pytest.mark.parametrize(
    ("node", "changes"),
    [
        (0, {"inputs": [-1]}),
        (0, {"consumers": []}),
        (1, {"inputs": [0, 0]}),
        (2, {"operator": 99}),
        (2, {"operator": -1}),
    ],
)
def test_damaged_connections(node: int, changes: Any) -> None:
    description, arrays = describe_dataflows([flow(perceptron(), Phase.TRAIN)])
    description["graphs"][0]["nodes"][node] |= changes
    with pytest.raises(DataError, match=r"^expected the description of a graph"):
        read_dataflows(description, arrays)


def test_swapped_nodes() -> None:
    description, arrays = describe_dataflows([flow(perceptron(), Phase.TRAIN)])
    nodes = description["graphs"][0]["nodes"]
    nodes[1], nodes[2] = (replace_positions(nodes[at], {1: 2, 2: 1}) for at in (2, 1))
    nodes[0], nodes[3] = (replace_positions(nodes[at], {1: 2, 2: 1}) for at in (0, 3))
    with pytest.raises(DataError, match="nodes in order"):
        read_dataflows(description, arrays)


def replace_positions(described: Any, places: dict[int, int]) -> Any:
    return {
        "operator": described["operator"],
        **{name: [places.get(at, at) for at in described[name]] for name in ("inputs", "consumers")},
    }
