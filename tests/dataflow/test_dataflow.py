"""A dataflow prints itself as a table and as a picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import DataError, Dataflow, Dataset, ExecutionContext, GraphError, ModelConf, Phase, SubGraph, SystemConf
from crossbow.dataflow.graph import BATCH, Graph
from crossbow.ops import EuclideanLoss, Gradient, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from tests.dataflow.networks import branched, chain, inner_product, node, perceptron


def context(*dataflows: Dataflow | None, batch_size: int = 4) -> ExecutionContext:
    x = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    return ExecutionContext(
        dataflows,
        data=Dataset((x, np.arange(12) % 3), (x, np.arange(12) % 3)),
        model=ModelConf(batch_size=batch_size, check_batch_size=4),
        system=SystemConf(kernels="reference", learners_per_device=1),
    )


# The table.

UNCOMPILED = """\
order  node           operator                  inputs  output  variables  bytes  buffer  kernels
-------------------------------------------------------------------------------------------------
0      ip1            InnerProduct              batch
1      relu           ReLU                      0
2      ip2            InnerProduct              1
3      softmax        SoftMax                   2
4      loss           SoftMaxLoss               3
5      loss.gradient  SoftMaxLossGradient       4
6      ip2.gradient   InnerProductGradient      5
7      relu.gradient  ReLUGradient              6
8      ip1.gradient   InnerProductGradient      7
9      optimiser      GradientDescentOptimiser  6 8"""

WITH_SHAPES = """\
order  node           operator                  inputs  output  variables           bytes  buffer  kernels
----------------------------------------------------------------------------------------------------------
0      ip1            InnerProduct              batch   8×4     weights 4×5 bias 4
1      relu           ReLU                      0       8×4
2      ip2            InnerProduct              1       8×3     weights 3×4 bias 3
3      softmax        SoftMax                   2       8×3
4      loss           SoftMaxLoss               3       1
5      loss.gradient  SoftMaxLossGradient       4       8×3
6      ip2.gradient   InnerProductGradient      5       8×4
7      relu.gradient  ReLUGradient              6       8×4
8      ip1.gradient   InnerProductGradient      7       8×5
9      optimiser      GradientDescentOptimiser  6 8     1"""

COMPILED = """\
order  node           operator                  inputs  output  variables           bytes  buffer     kernels
-------------------------------------------------------------------------------------------------------------
0      ip1            InnerProduct              batch   4×4     weights 4×5 bias 4  64     arena+128  inner_product_forward reference
1      relu           ReLU                      0       4×4                         64     arena+128  activation_forward relu reference
2      ip2            InnerProduct              1       4×3     weights 3×4 bias 3  48     arena+320  inner_product_forward reference
3      softmax        SoftMax                   2       4×3                         48     arena+384  softmax_forward reference
4      loss           SoftMaxLoss               3       1                           4      arena+256  softmax_loss_forward of logits reference
5      loss.gradient  SoftMaxLossGradient       4       4×3                         48     arena+320  softmax_loss_backward reference
6      ip2.gradient   InnerProductGradient      5       4×4                         64     arena+192  inner_product_backward_weights reference, inner_product_backward_data reference
7      relu.gradient  ReLUGradient              6       4×4                         64     arena+192  activation_backward relu reference
8      ip1.gradient   InnerProductGradient      7       4×5                                           inner_product_backward_weights reference
9      optimiser      GradientDescentOptimiser  6 8     1"""  # noqa: E501

CHECK = """\
order  node      operator      inputs  output  variables           bytes  buffer     kernels
--------------------------------------------------------------------------------------------
0      ip1       InnerProduct  batch   4×4     weights 4×5 bias 4  64     arena+128  inner_product_forward reference
1      relu      ReLU          0       4×4                         64     arena+128  activation_forward relu reference
2      ip2       InnerProduct  1       4×3     weights 3×4 bias 3  48     arena+0    inner_product_forward reference
3      softmax   SoftMax       2       4×3                         48     arena+64   softmax_forward reference
4      loss      SoftMaxLoss   3       1                           4      arena+128  softmax_loss_forward of logits reference
5      accuracy  Accuracy      3       1                           4      arena+0    accuracy reference"""  # noqa: E501


def test_it_is_shown_in_a_line() -> None:
    flow = Dataflow(SubGraph(inner_product("ip", 3)))
    assert repr(flow) == "Dataflow(TRAIN, 1 node)"
    assert repr(Dataflow(SubGraph(perceptron())).set_phase(Phase.CHECK)) == "Dataflow(CHECK, 5 nodes)"


def test_before_compiling_the_table_shows_the_graph() -> None:
    assert Dataflow(SubGraph(perceptron())).describe() == UNCOMPILED


def test_with_the_shape_of_a_batch_it_shows_shapes_and_variables() -> None:
    assert Dataflow(SubGraph(perceptron())).describe((8, 5)) == WITH_SHAPES


def test_after_compiling_it_shows_memory_and_kernels() -> None:
    dataflow = Dataflow(SubGraph(perceptron()))
    with context(dataflow, None) as running:
        assert running.describe_dataflows().split("\n\n")[0] == COMPILED
        program = running.engine.program
        assert dataflow.describe(compiled=program) == COMPILED
        assert dataflow.describe((4, 5), compiled=program) == COMPILED
        assert dataflow.describe((8, 5), compiled=program) == WITH_SHAPES  # of another batch nothing is compiled
    assert dataflow.describe() == UNCOMPILED


def test_the_check_dataflow_shows_its_own_memory() -> None:
    head = perceptron()
    check = Dataflow(SubGraph(head)).set_phase(Phase.CHECK)
    with context(Dataflow(SubGraph(head)), check) as running:
        assert running.describe_dataflows().split("\n\n")[1] == CHECK


def test_many_inputs_are_cut_short() -> None:
    ips = [inner_product(f"ip{i}", 2) for i in range(8)]
    table = Dataflow(SubGraph(chain(*ips, node("loss", EuclideanLoss())))).describe()
    assert table.splitlines()[-1].endswith("10 11 12 13 14 15 …")


def test_a_batch_that_does_not_fit_is_a_fault() -> None:
    with pytest.raises(GraphError, match=r"node 'conv1' \(Conv\): expected an input of shape \(N, C, W\), \(N"):
        Dataflow(SubGraph(branched())).describe((8, 5))


@pytest.mark.parametrize("batch", ["abc", 5, (-8, 3, 8, 8), (0, 5), (8, 5.0), (8,), (), np.ones((2, 2))], ids=str)
def test_a_batch_that_is_no_shape(batch: Any) -> None:
    with pytest.raises(
        GraphError, match=r"describe: expected the shape of a batch, as \(N, C, H, W\) .*Received: "
    ) as it:
        Dataflow(SubGraph(branched())).describe(batch)
    assert "\n" not in str(it.value)


# Parameters.


def test_the_number_of_parameters() -> None:
    assert Dataflow(SubGraph(perceptron())).parameters((8, 5)) == (5 * 4 + 4) + (4 * 3 + 3)


def test_parameters_of_a_shared_operator_count_once() -> None:
    head, first = inner_product("ip1", 4), inner_product("ip2", 4)
    again = first.shallow_copy()
    chain(head, first, again, node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    assert Dataflow(SubGraph(head)).parameters((8, 5)) == (5 * 4 + 4) + (4 * 4 + 4)


def test_parameters_for_a_batch_that_does_not_fit() -> None:
    with pytest.raises(GraphError, match=r"parameters: expected the shape of a batch"):
        Dataflow(SubGraph(branched())).parameters((8,))
    with pytest.raises(GraphError, match=r"node 'conv1' \(Conv\): expected an input of shape"):
        Dataflow(SubGraph(branched())).parameters((8, 5))


# The picture.


def parse_dot(text: str) -> tuple[dict[str, dict[str, str]], list[tuple[str, str, bool]]]:
    """Nodes with their attributes, and edges with whether they are dashed: enough of DOT to read what we write."""
    lines = text.splitlines()
    assert lines[0] == "digraph dataflow {"
    assert lines[-1] == "}"
    nodes: dict[str, dict[str, str]] = {}
    edges: list[tuple[str, str, bool]] = []
    quoted = r'"(?:[^"\\]|\\.)*"'
    for line in lines[1:-1]:
        statement = line.strip()
        assert statement.endswith(";")
        attributes = {}
        if bracket := re.search(r"\s*\[(.*)\];$", statement):
            body = bracket[1]
            attributes = dict(re.findall(rf"(\w+)=({quoted}|[\w.]+)", body))
            assert re.sub(rf"\w+=(?:{quoted}|[\w.]+)(?:, )?", "", body) == "", body
            statement = statement[: bracket.start()]
        statement = statement.removesuffix(";")
        if arrow := re.fullmatch(r"(\w+) -> (\w+)", statement):
            edges.append((arrow[1], arrow[2], attributes.get("style") == "dashed"))
        elif re.fullmatch(r"\w+", statement) and statement != "node":
            nodes[statement] = attributes
    return nodes, edges


def unquoted(text: str) -> str:
    return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def check_picture(graph: Graph, path: Path) -> dict[str, Any]:
    nodes, edges = parse_dot(path.read_text(encoding="utf-8"))
    assert set(nodes) == {"batch", *(f"n{vertex.order}" for vertex in graph)}
    assert [(a, b) for a, b, dashed in edges if not dashed] == [
        ("batch" if source == BATCH else f"n{source}", f"n{vertex.order}")
        for vertex in graph
        for source in vertex.inputs
    ]
    assert [(a, b) for a, b, dashed in edges if dashed] == [
        (f"n{vertex.peer}", f"n{vertex.order}") for vertex in graph if vertex.peer is not None
    ]
    for vertex in graph:
        attributes = nodes[f"n{vertex.order}"]
        name, kind = attributes["label"][1:-1].rsplit("\\n", 1)
        assert unquoted(f'"{name}"') == f"{vertex.order} {vertex.name}"
        assert kind == type(vertex.kernel).__name__
        assert (attributes.get("fillcolor") == '"#eeeeee"') == isinstance(vertex.kernel, Gradient)
    return nodes


@pytest.mark.parametrize("phase", list(Phase))
def test_the_picture_is_the_graph(tmp_path: Path, phase: Phase) -> None:
    dataflow = Dataflow(SubGraph(branched())).set_phase(phase)
    dataflow.export_dot(tmp_path / "net.dot")
    check_picture(dataflow.graph, tmp_path / "net.dot")


@pytest.mark.parametrize("name", ['say "hello"', "back\\slash", "ends with \\", "größe", "a -> b; c [x=y]"])
def test_any_name_can_be_drawn(tmp_path: Path, name: str) -> None:
    ip = node(name, InnerProduct(number_of_outputs=2))
    dataflow = Dataflow(SubGraph(chain(ip, node("loss", EuclideanLoss()))))
    dataflow.export_dot(str(tmp_path / "net.dot"))
    check_picture(dataflow.graph, tmp_path / "net.dot")


# What it is made of.


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    dataflow = Dataflow(SubGraph(perceptron()))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file: expected a directory to write to\. Received: a file"):
        dataflow.export_dot(tmp_path / "file" / "graph.dot")
    with pytest.raises(DataError, match=r"expected the name of a file to write\. Received: a directory"):
        dataflow.export_dot(tmp_path)
    for path in (None, 5, b"graph.dot"):
        with pytest.raises(TypeError, match=r"export_dot: expected a path, as a str or a pathlib\.Path\. Received: "):
            dataflow.export_dot(path)  # type: ignore[arg-type]


def test_it_holds_a_subgraph() -> None:
    with pytest.raises(TypeError, match=r"a Dataflow holds a SubGraph\. Received: DataflowNode\('relu'\)"):
        Dataflow(node("relu", ReLU()))  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["train", None, 0])
def test_the_phase_is_a_phase(phase: object) -> None:
    with pytest.raises(TypeError, match=r"the phase is Phase\.TRAIN or Phase\.CHECK\. Received: "):
        Dataflow(SubGraph(node("relu", ReLU()))).set_phase(phase)  # type: ignore[arg-type]
