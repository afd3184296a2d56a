"""The prediction of a matrix factorisation, to ONNX and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from crossbow import DataflowNode, Operator, SubGraph
from crossbow.onnx import load, save
from crossbow.ops import Kernel, MatFact, MatFactPrediction, Values
from crossbow.predictor import Predictor
from tests.onnx.models import draw, run_onnx

USERS, ITEMS = draw(5, 3), draw(4, 3)
PAIRS = np.array([[0, 3], [4, 0], [2, 2]], np.float32)


def network_of(kernel: Kernel) -> SubGraph:
    return SubGraph(DataflowNode(Operator("ratings", kernel)))


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    """onnxruntime predicts the same."""
    path = tmp_path / "ratings.onnx"
    kernel = MatFactPrediction(
        rows=5, columns=4, latents=3, users_initialiser=Values(USERS), items_initialiser=Values(ITEMS)
    )
    save(network_of(kernel), path, input_shape=(2,))
    expected = [USERS[int(u)] @ ITEMS[int(v)] for u, v in PAIRS]
    np.testing.assert_allclose(run_onnx(onnx.load(path), input=PAIRS), expected, rtol=1e-6)
    network = load(path)
    (node,) = network.nodes
    assert node.operator.name == "ratings"
    assert isinstance(node.operator.kernel, MatFactPrediction)
    assert (node.operator.kernel.rows, node.operator.kernel.columns, node.operator.kernel.latents) == (5, 4, 3)
    with Predictor(network) as predictor:
        np.testing.assert_allclose(predictor(PAIRS), expected, rtol=1e-6)


def test_another_order_of_the_nodes(tmp_path: Path) -> None:
    """Users and items are told apart by the columns of the indices. The loss has the initial values, too."""
    tables = {"users_initialiser": Values(USERS[:4]), "items_initialiser": Values(ITEMS)}
    path = tmp_path / "ratings.onnx"
    save(network_of(MatFact(rows=4, columns=4, latents=3, **tables)), path, input_shape=(2,))
    model = onnx.load(path)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([nodes[at] for at in (0, 3, 4, 1, 2, 5, 6)])
    onnx.save(model, path)
    with Predictor(load(path)) as predictor:
        assert abs(predictor(PAIRS[:1]).item() - USERS[0] @ ITEMS[3]) < 1e-5
