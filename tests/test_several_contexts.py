"""One dataflow in several contexts: each has a model of its own, and nobody gets another's by mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import SSGD, Dataflow, Dataset, GraphError, Phase, SubGraph
from crossbow.ops import BatchNorm, Constant, Conv, Dropout, InnerProduct, ReLU
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


@KERNELS
def test_one_after_the_other(kernels: str) -> None:
    dataflow = network()
    for options in (*OPTIONS, OPTIONS[0]):
        with context(dataflow, data=DATA, kernels=kernels, **options) as running:
            running.train(2)
            variables, prediction = alone(options, 2, kernels=kernels)
            assert same_weights(running.variables, variables)
            np.testing.assert_array_equal(running.predict(DATA.train.images), prediction)


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


def test_what_describes_a_dataflow_is_of_an_open_context() -> None:
    dataflow = network()
    with context(dataflow, data=DATA, batch_size=4) as first:
        with context(dataflow, data=DATA, batch_size=6) as second:
            assert dataflow.compiled is second.engine.program
            assert "6×4×6×6" in dataflow.describe()
        assert dataflow.compiled is first.engine.program
        assert "4×4×6×6" in dataflow.describe()
    assert dataflow.compiled is not None


def test_a_context_without_a_check_set_leaves_the_program_of_an_earlier_one() -> None:
    dataflow = network()
    check = Dataflow(SubGraph(dataflow.subgraph.head)).set_phase(Phase.CHECK)
    assert not check.was_held
    with context(dataflow, check=check, data=DATA) as first:
        program = check.compiled
        assert program is first.engine.parts.check_program
        with context(dataflow, check=check, data=WITHOUT_CHECK):
            assert check.compiled is program
    description = check.describe()
    assert program is not None
    with context(dataflow, check=check, data=WITHOUT_CHECK):
        assert check.compiled is None
    assert check.compiled is program
    assert check.describe() == description
    assert check.was_held


def test_a_context_that_could_not_be_made_holds_nothing() -> None:
    dataflow = network()
    with context(dataflow, data=DATA) as running:
        with pytest.raises(GraphError, match="Conv0"):
            context(dataflow, data=blobs())
        assert dataflow.compiled is running.engine.program
        assert dataflow.base_model is not None
    fresh = network()
    with pytest.raises(GraphError, match="Conv0"):
        context(fresh, data=blobs())
    assert not fresh.was_held


# Saving.


def saved(dataflow: Dataflow, path: Path, **options: Any) -> dict[str, Array]:
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    from crossbow.onnx import save

    save(dataflow, path, **options)
    return {entry.name: onnx.numpy_helper.to_array(entry) for entry in onnx.load(path).graph.initializer}


def is_in(variables: dict[str, Array], model: dict[str, Array]) -> bool:
    """Whether the convolution's weights are among the arrays of a model."""
    return any(np.array_equal(array, variables["Conv0.weights"]) for array in model.values())


def test_what_is_saved_is_the_model_of_the_open_context(tmp_path: Path) -> None:
    dataflow = network()
    check = Dataflow(SubGraph(dataflow.subgraph.head)).set_phase(Phase.CHECK)
    with context(dataflow, check=check, data=DATA, seed=1) as first:
        with context(dataflow, check=check, data=DATA, seed=2) as second:
            for held in (dataflow, check):
                with pytest.raises(GraphError, match=r"one open context holds.*Received: one that 2 hold; close the"):
                    saved(held, tmp_path / "model.onnx")
            assert not (tmp_path / "model.onnx").exists()
        for held in (dataflow, check):
            model = saved(held, tmp_path / "model.onnx")
            assert is_in(first.variables, model)
    with pytest.raises(GraphError, match="expected a dataflow whose base model is there"):
        saved(dataflow, tmp_path / "model.onnx")
    with context(dataflow, data=DATA, seed=2) as second:
        assert is_in(second.variables, saved(dataflow, tmp_path / "model.onnx"))


@pytest.mark.parametrize("data", [blobs(), blobs(check=0)], ids=["with a check set", "without"])
def test_initial_values_are_not_saved_for_what_a_closed_context_has_trained(tmp_path: Path, data: Dataset) -> None:
    """They are known; a dataflow for checks that was never compiled was held all the same."""
    dataflow = training(InnerProduct(number_of_outputs=3, weight_initialiser=Constant(0.5)))
    check = Dataflow(SubGraph(dataflow.subgraph.head)).set_phase(Phase.CHECK)
    path = tmp_path / "model.onnx"
    with context(dataflow, check=check, data=data) as running:
        running.train(3)
        model = saved(check, path, input_shape=(6,))
        assert any(np.array_equal(array, running.variables["InnerProduct0.weights"]) for array in model.values())
    path.unlink()
    for held in (dataflow, check):
        with pytest.raises(GraphError, match="expected a dataflow whose base model is there"):
            saved(held, path, input_shape=(6,))
    assert not path.exists()


def test_a_dataflow_of_its_own_for_each(tmp_path: Path) -> None:
    """As the error advises: operators are shared, models are not."""
    dataflow = network()
    other = Dataflow(dataflow.subgraph)
    with context(dataflow, data=DATA, seed=1) as first, context(other, data=DATA, seed=2) as second:
        assert not same_weights(first.variables, second.variables)
        for held, running in ((dataflow, first), (other, second)):
            assert is_in(running.variables, saved(held, tmp_path / "model.onnx"))


def test_a_context_that_is_gone_holds_nothing() -> None:
    """Whoever makes one in a notebook's cell, again and again, closes none. (Its threads stay.)"""
    dataflow, engines = network(), []
    for seed in range(2):
        running = context(dataflow, data=DATA, seed=seed)
        engines.append(running.engine)
    assert dataflow.base_model is not None
    model = dataflow.base_model()
    assert any(np.array_equal(value, running.variables["Conv0.weights"]) for value in model.values())
    del running
    assert dataflow.base_model is None
    for engine in engines:
        engine.close()
