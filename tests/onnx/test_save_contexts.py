"""Whose base model `save` writes: contexts that train, are closed, or share operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from crossbow import CrossbowError, Dataflow, DataflowNode, ExecutionContext, Operator, SubGraph
from crossbow.onnx import save
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss, Values
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.results import Record
from tests.onnx.models import draw
from tests.support import chain, context, perceptron

Array = NDArray[Any]


class Saving(Monitor):
    """Saves while the engine works, and between epochs."""

    interval = 0.0

    def __init__(self, path: Path) -> None:
        self.path, self.refused = path, 0
        self.of: ExecutionContext | None = None

    def progress(self, progress: Progress) -> None:
        assert self.of is not None
        with pytest.raises(CrossbowError, match="not possible while training"):
            save(self.of, self.path)
        self.refused += 1
        assert not self.path.exists()

    def record(self, record: Record) -> None:
        assert self.of is not None
        save(self.of, self.path)
        np.testing.assert_array_equal(saved(self.path), self.of.variables["InnerProduct0.weights"])
        self.path.unlink()


def saved(path: Path) -> Array:
    (found,) = (t for t in onnx.load(path).graph.initializer if t.name == "InnerProduct0.weights")
    return onnx.numpy_helper.to_array(found)


def known_weights() -> tuple[DataflowNode, Array]:
    """A network whose initial weights are known, and these."""
    weights = draw(3, 6)
    (node,) = chain(InnerProduct(number_of_outputs=3, weight_initialiser=Values(weights)))
    node.connect_to(DataflowNode(Operator("softmax", SoftMax()))).connect_to(DataflowNode(Operator("l", SoftMaxLoss())))
    return node, weights


def test_while_the_context_trains_and_between_epochs(tmp_path: Path) -> None:
    monitor = Saving(tmp_path / "model.onnx")
    with context(perceptron(), monitors=[monitor]) as monitor.of:
        history = monitor.of.train(2)
    assert len(history.records) == 2
    assert monitor.refused > 0


def test_contexts_of_one_dataflow(tmp_path: Path) -> None:
    dataflow, path = perceptron(), tmp_path / "model.onnx"
    with context(dataflow, seed=1) as first, context(dataflow, seed=2) as second:
        first.train(1)
        models = []
        for running in (first, second):
            save(running, path)
            np.testing.assert_array_equal(saved(path), running.variables["InnerProduct0.weights"])
            models.append(saved(path))
    assert not (models[0] == models[1]).all()


def test_the_subgraph_has_the_initial_values(tmp_path: Path) -> None:
    """A context that shares its operators changes nothing of them."""
    node, weights = known_weights()
    dataflow, path = Dataflow(SubGraph(node)), tmp_path / "model.onnx"
    with context(dataflow) as running:
        running.train(2)
        for model in (dataflow.subgraph, running):
            save(model, path, input_shape=(6,))
            trained = not (saved(path) == weights).all()
            assert trained == (model is running)


def test_after_the_context_is_closed_the_model_is_gone(tmp_path: Path) -> None:
    """It is not taken for its initial values, although these are known."""
    node, _ = known_weights()
    with context(Dataflow(SubGraph(node))) as running:
        pass
    with pytest.raises(CrossbowError, match="the context is closed"):
        save(running, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
