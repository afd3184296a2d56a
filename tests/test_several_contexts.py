"""One dataflow in several contexts: each has a model of its own."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import SSGD, Dataflow, Dataset, ExecutionContext, GraphError, Phase, SubGraph
from crossbow.ops import BatchNorm, Conv, Dropout, InnerProduct, ReLU
from tests.support import KERNELS, Array, blobs, context, pictures, same_weights, training

DATA = pictures()
WITHOUT_CHECK = Dataset((DATA.train.images, DATA.train.labels), number_of_classes=3)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"learners": 1, "seed": 3},
    {"learners": 2, "batch_size": 3, "rule": SSGD()},
)


def network() -> Dataflow:
    return training(
        Conv(number_of_outputs=4, kernel_size=3),
        BatchNorm(),
        ReLU(),
        Dropout(ratio=0.3),
        InnerProduct(number_of_outputs=3),
    )


def alone(options: dict[str, Any], epochs: int, **more: Any) -> tuple[dict[str, Array], Array]:
    """The model, and what it predicts, of a context with a dataflow of its own."""
    with context(network(), data=DATA, **options, **more) as running:
        running.train(epochs)
        return running.variables, running.predict(DATA.train.images)


@pytest.mark.slow
@KERNELS
def test_one_after_the_other(kernels: str) -> None:
    dataflow = network()
    for options in (*OPTIONS, OPTIONS[0]):
        with context(dataflow, data=DATA, kernels=kernels, **options) as running:
            running.train(2)
            variables, prediction = alone(options, 2, kernels=kernels)
            assert same_weights(running.variables, variables)
            np.testing.assert_array_equal(running.predict(DATA.train.images), prediction)


@pytest.mark.slow
@KERNELS
def test_both_open(kernels: str) -> None:
    """They take turns; the one that was opened first goes on when the other is closed."""
    dataflow = network()
    with context(dataflow, data=DATA, kernels=kernels, **OPTIONS[0]) as first:
        with context(dataflow, data=DATA, kernels=kernels, **OPTIONS[1]) as second:
            for running in (first, second, first, second):
                running.train(1)
            assert second.test().loss > 0
            variables, prediction = alone(OPTIONS[1], 2, kernels=kernels)
            assert same_weights(second.variables, variables)
            np.testing.assert_array_equal(second.predict(DATA.train.images), prediction)
        first.train(1)
        variables, prediction = alone(OPTIONS[0], 3, kernels=kernels)
        assert same_weights(first.variables, variables)
        np.testing.assert_array_equal(first.predict(DATA.train.images), prediction)


def test_each_describes_its_own_program() -> None:
    dataflow = network()
    with context(dataflow, data=DATA, batch_size=4) as first, context(dataflow, data=DATA, batch_size=6) as second:
        assert "6×4×6×6" in second.describe_dataflows()
        assert "4×4×6×6" in first.describe_dataflows()
        assert "6×4×6×6" not in first.describe_dataflows()


def test_without_a_check_set_only_training_is_described() -> None:
    check = Dataflow(SubGraph(network().subgraph.head)).set_phase(Phase.CHECK)
    dataflow = Dataflow(check.subgraph)
    for data, tables in ((DATA, 2), (WITHOUT_CHECK, 1)):
        with context(dataflow, check=check, data=data) as running:
            assert len(running.describe_dataflows().split("\n\n")) == tables


def test_after_a_context_that_could_not_be_made() -> None:
    dataflow = network()
    with pytest.raises(GraphError, match="Conv0"):
        context(dataflow, data=blobs())
    with context(dataflow, data=DATA) as running:
        running.train(1)


# Saving.


def saved(running: ExecutionContext, path: Path) -> dict[str, Array]:
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    from crossbow.onnx import save

    save(running, path)
    return {entry.name: onnx.numpy_helper.to_array(entry) for entry in onnx.load(path).graph.initializer}


def is_in(variables: dict[str, Array], model: dict[str, Array]) -> bool:
    """Whether the convolution's weights are among the arrays of a model."""
    return any(np.array_equal(array, variables["Conv0.weights"]) for array in model.values())


def test_each_saves_its_own_model(tmp_path: Path) -> None:
    dataflow = network()
    check = Dataflow(SubGraph(dataflow.subgraph.head)).set_phase(Phase.CHECK)
    with context(dataflow, check=check, data=DATA, seed=1) as first:
        with context(dataflow, check=check, data=DATA, seed=2) as second:
            models = [saved(running, tmp_path / "model.onnx") for running in (first, second)]
            assert [is_in(first.variables, model) for model in models] == [True, False]
            assert [is_in(second.variables, model) for model in models] == [False, True]
        assert is_in(first.variables, saved(first, tmp_path / "model.onnx"))


def test_a_dataflow_keeps_no_context() -> None:
    """A context without references is collected, although its dataflow is still there."""
    dataflow = network()
    running = context(dataflow, data=DATA)
    engine, gone = running.engine, weakref.ref(running)
    del running
    assert gone() is None
    engine.close()
