"""Whose base model `save` writes: contexts that train, are closed, or hold the same operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from crossbow import CrossbowError, Dataflow, DataflowNode, ExecutionContext, GraphError, Operator, SubGraph
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

    def __init__(self, dataflow: Dataflow, path: Path) -> None:
        self.dataflow, self.path, self.refused = dataflow, path, 0
        self.of: ExecutionContext | None = None

    def progress(self, progress: Progress) -> None:
        with pytest.raises(CrossbowError, match="not possible while training"):
            save(self.dataflow, self.path)
        self.refused += 1
        assert not self.path.exists()

    def record(self, record: Record) -> None:
        assert self.of is not None
        save(self.dataflow, self.path)
        np.testing.assert_array_equal(saved(self.path), self.of.variables["InnerProduct0.weights"])
        self.path.unlink()


def saved(path: Path) -> Array:
    (found,) = (t for t in onnx.load(path).graph.initializer if t.name == "InnerProduct0.weights")
    return onnx.numpy_helper.to_array(found)


def test_while_the_context_trains_and_between_epochs(tmp_path: Path) -> None:
    dataflow = perceptron()
    monitor = Saving(dataflow, tmp_path / "model.onnx")
    with context(dataflow, monitors=[monitor]) as monitor.of:
        history = monitor.of.train(2)
    assert len(history.records) == 2
    assert monitor.refused > 0


def test_after_its_first_context_the_second_one_counts(tmp_path: Path) -> None:
    dataflow = perceptron()
    with context(dataflow, seed=1) as first:
        first.train(1)
    with context(dataflow, seed=2) as second:
        save(dataflow, tmp_path / "model.onnx")
        np.testing.assert_array_equal(saved(tmp_path / "model.onnx"), second.variables["InnerProduct0.weights"])


def test_two_open_contexts_and_then_one(tmp_path: Path) -> None:
    dataflow, path = perceptron(), tmp_path / "model.onnx"
    with context(dataflow, seed=1) as first:
        with context(dataflow, seed=2), pytest.raises(GraphError, match="a dataflow that one open context holds"):
            save(dataflow, path)
        assert not path.exists()
        save(dataflow, path)
        np.testing.assert_array_equal(saved(path), first.variables["InnerProduct0.weights"])


def test_two_dataflows_of_the_same_operators(tmp_path: Path) -> None:
    """Each is saved with the base model of its own context; one without, as the operators began."""
    weights = draw(3, 6)
    (node,) = chain(InnerProduct(number_of_outputs=3, weight_initialiser=Values(weights)))
    node.connect_to(DataflowNode(Operator("softmax", SoftMax()))).connect_to(DataflowNode(Operator("l", SoftMaxLoss())))
    dataflows = [Dataflow(SubGraph(node)) for _ in range(3)]
    with context(dataflows[0]) as first, context(dataflows[1]) as second:
        first.train(1)
        second.train(2)
        trained = [each.variables["InnerProduct0.weights"] for each in (first, second)]
        assert not (trained[0] == trained[1]).all()
        for dataflow, expected in zip(dataflows, [*trained, weights], strict=True):
            save(dataflow, tmp_path / "model.onnx", input_shape=(6,))
            np.testing.assert_array_equal(saved(tmp_path / "model.onnx"), expected)


def test_the_context_that_is_left_is_the_one(tmp_path: Path) -> None:
    dataflow = perceptron()
    with context(dataflow, seed=1) as first, context(dataflow, seed=2) as second:
        first.close()
        save(dataflow, tmp_path / "model.onnx")
        expected = second.variables["InnerProduct0.weights"]
    np.testing.assert_array_equal(saved(tmp_path / "model.onnx"), expected)


def test_after_the_context_is_closed_the_model_is_gone(tmp_path: Path) -> None:
    dataflow = perceptron()
    with context(dataflow):
        pass
    with pytest.raises(GraphError, match="a dataflow that no open context holds; save it inside"):
        save(dataflow, tmp_path / "model.onnx")


def test_initial_values_are_not_saved_for_a_base_model_that_is_gone(tmp_path: Path) -> None:
    """A loaded model's initial values are known; but what was trained is no more."""
    (node,) = chain(InnerProduct(number_of_outputs=3, weight_initialiser=Values(draw(3, 6))))
    node.connect_to(DataflowNode(Operator("softmax", SoftMax()))).connect_to(DataflowNode(Operator("l", SoftMaxLoss())))
    dataflow = Dataflow(SubGraph(node))
    save(dataflow, tmp_path / "before.onnx", input_shape=(6,))
    with context(dataflow):
        save(dataflow, tmp_path / "while.onnx")
    for shape in (None, (6,)):
        with pytest.raises(GraphError, match="a dataflow that no open context holds"):
            save(dataflow, tmp_path / "after.onnx", input_shape=shape)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before.onnx", "while.onnx"]
