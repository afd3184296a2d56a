"""Examples of every rank train, are tested, predicted, saved and loaded: features, sequences, images, volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import Dataset, ExecutionContext, ModelConf, Predictor, Sequential, SolverConf
from crossbow.data import synthetic
from crossbow.ops import Conv, EuclideanLoss, InnerProduct, Kernel, Pool, ReLU, SoftMax, SoftMaxLoss

RANDOM = np.random.default_rng(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((12,), []),
        ((3, 20), [Conv(8, 3), ReLU(), Pool()]),
        ((16, 16), [Conv(8, 3), ReLU(), Pool()]),
        ((2, 8, 8), [Conv(8, 3), ReLU(), Pool()]),
        ((2, 6, 6, 6), [Conv(8, 3), ReLU(), Pool()]),
        ((2, 3, 2, 3, 2), []),
    ],
    ids=lambda value: "×".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_it_learns_from_examples_of_this_shape(shape: tuple[int, ...], layers: list[Kernel], tmp_path: Path) -> None:
    data = synthetic(shape, number_of_classes=4, training=160, check=40)
    network = Sequential(*layers, InnerProduct(4), SoftMax(), SoftMaxLoss())
    solver = SolverConf(learning_rate=0.02, momentum=0.9)
    with ExecutionContext(network, data=data, model=ModelConf(batch_size=8), solver=solver, monitors=()) as context:
        context.train(6)
        assert (context.test().accuracy or 0) > 0.6
        assert data.check is not None
        images: Any = data.check.images  # type: ignore[attr-defined]
        predicted = context.predict(images)
        context.save(tmp_path / "model")
    with Predictor.load(tmp_path / "model") as predictor:
        np.testing.assert_array_equal(predictor(images), predicted)


def test_integers_are_counts(tmp_path: Path) -> None:
    """Predictions take them, too."""
    x = RANDOM.integers(0, 10, (400, 6))
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    network = Sequential(InnerProduct(2), SoftMax(), SoftMaxLoss())
    data, solver = Dataset((x, y)).split(0.25), SolverConf(learning_rate=0.02)
    with ExecutionContext(network, data=data, model=ModelConf(batch_size=10), solver=solver, monitors=()) as context:
        context.train(30)
        assert (context.test().accuracy or 0) > 0.9
        predicted = context.predict(x)
        np.testing.assert_array_equal(predicted, context.predict(x.astype(np.float32)))
        context.save(tmp_path / "model")
    with Predictor.load(tmp_path / "model") as predictor:
        np.testing.assert_array_equal(predictor(x), predicted)


def test_several_targets_and_labels_are_a_regression() -> None:
    """Labels of which several may be true are targets of 0.0 and 1.0, for a sigmoid."""
    x = RANDOM.normal(size=(400, 4)).astype(np.float32)
    y = (x[:, :3] + x[:, 1:] > 0).astype(np.float32)
    network = Sequential(InnerProduct(3), ReLU("sigmoid"), EuclideanLoss())
    data, solver = Dataset((x, y)).split(0.25), SolverConf(learning_rate=0.5, momentum=0.9)
    with ExecutionContext(network, data=data, model=ModelConf(batch_size=10), solver=solver, monitors=()) as context:
        history = context.train_and_test(15)
        assert history.best is min(history.tests, key=lambda record: record.test.loss)  # type: ignore[union-attr]
        assert np.mean((context.predict(x) > 0.5) == (y > 0.5)) > 0.95
