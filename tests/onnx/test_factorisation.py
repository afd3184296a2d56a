"""The prediction of a matrix factorisation, to ONNX and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from crossbow import Dataflow, DataflowNode, Operator, SubGraph
from crossbow.onnx import load, save
from crossbow.ops import MatFactPrediction, Values
from crossbow.predictor import Predictor
from tests.onnx.models import draw, run_onnx

USERS, ITEMS = draw(5, 3), draw(4, 3)
PAIRS = np.array([[0, 3], [4, 0], [2, 2]], np.float32)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    """onnxruntime predicts the same."""
    path = tmp_path / "ratings.onnx"
    kernel = MatFactPrediction(
        rows=5, columns=4, latents=3, users_initialiser=Values(USERS), items_initialiser=Values(ITEMS)
    )
    save(Dataflow(SubGraph(DataflowNode(Operator("ratings", kernel)))).subgraph, path, input_shape=(2,))
    expected = [USERS[int(u)] @ ITEMS[int(v)] for u, v in PAIRS]
    np.testing.assert_allclose(run_onnx(onnx.load(path), input=PAIRS), expected, rtol=1e-6)
    network = load(path)
    (node,) = network.nodes
    assert node.operator.name == "ratings"
    assert isinstance(node.operator.kernel, MatFactPrediction)
    assert (node.operator.kernel.rows, node.operator.kernel.columns, node.operator.kernel.latents) == (5, 4, 3)
    with Predictor(network) as predictor:
        np.testing.assert_allclose(predictor(PAIRS), expected, rtol=1e-6)
