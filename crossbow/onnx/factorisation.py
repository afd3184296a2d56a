"""Export and import of the prediction of a matrix factorisation. It becomes several standard operators, which are read
as a group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.node import Node, Numbers
from crossbow.onnx.reading.table import reads_group
from crossbow.onnx.writing.table import writes
from crossbow.onnx.writing.written_operator import WrittenOperator
from crossbow.ops import MatFactPrediction, Values


@writes(MatFactPrediction)
def prediction(operator: WrittenOperator) -> None:
    """Write a MatFactPrediction: Cast, two Gather for each of users and items, Mul and ReduceSum."""
    indices = operator.add("Cast", operator.inputs[0], part="indices", to=7)  # int64
    vectors = []
    for column, name in enumerate(("users", "items")):
        place = operator.constant(f"{name}.column", [column], np.int64)
        rows = operator.add("Gather", indices, place, part=f"{name}.rows", axis=1)
        vectors.append(operator.add("Gather", operator.variable(name), rows, part=f"{name}.vectors", axis=0))
    products = operator.add("Mul", *vectors, part="products")
    operator.add("ReduceSum", products, operator.constant("axes", [1, 2], np.int64), keepdims=0)


@reads_group("MatFactPrediction", least=7)
def read_prediction(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `prediction` writes."""
    users, items = (_table(nodes, column) for column in (0, 1))
    (rows, latents), (columns, _) = users.shape, items.shape
    tables = {"users_initialiser": Values(users), "items_initialiser": Values(items)}
    return nodes[-1].apply(MatFactPrediction(rows=rows, columns=columns, latents=latents, **tables), nodes[0].step())


def _table(nodes: Sequence[Node], column: int) -> Numbers:
    """The vectors that this column of the indices selects. Other tools may have changed the order of the nodes."""
    gathers = [node for node in nodes if node.proto.op_type == "Gather"]
    rows = [node.proto.output[0] for node in gathers if node.is_constant(1) and node.constant(1) == [column]]
    (table,) = (node.weights(0) for node in gathers if node.proto.input[1] in rows)
    return table
