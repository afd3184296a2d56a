"""The prediction of a base model: batch by batch, with either of z's buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import Dataset
from crossbow.runtime.prediction import empty_batch
from crossbow.types import TaskError
from tests.support import CheckProbe, Trap, blobs, context, engine_of, perceptron, raising


def test_an_empty_batch_is_like_the_training_images() -> None:
    data = Dataset((np.zeros((9, 3, 5, 4), np.uint8), np.zeros(9, np.int64)))
    batch = empty_batch(data, 7)
    assert (batch.images.shape, batch.images.dtype) == ((1, 7, 3, 5, 4), np.uint8)
    assert (batch.labels.shape, batch.labels.dtype) == ((1, 7), np.int32)
    assert batch.source.scale == 1 / 255


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def by_hand(variables: dict[str, Any], x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ variables["InnerProduct0.weights"].T + variables["InnerProduct0.bias"], 0)
    return softmax(hidden @ variables["InnerProduct2.weights"].T + variables["InnerProduct2.bias"])


@pytest.mark.parametrize("count", [1, 4, 5, 11])
def test_images_are_predicted_in_batches(count: int) -> None:
    """The last batch is filled up, and what fills it is left out."""
    x = np.random.default_rng(count).standard_normal((count, 6)).astype(np.float32)
    with context(check_batch_size=4) as running:
        running.train(1)
        np.testing.assert_allclose(running.predict(x), by_hand(running.variables, x), rtol=1e-5)


def test_the_parity_selects_one_of_two_buffers() -> None:
    x = np.ones((2, 6), np.float32)
    with context() as running:
        running.train(1)
        engine = engine_of(running)
        base, tick = engine.parts.bases[0], engine.tick
        expected = running.predict(x)
        base.buffers[1 - tick % 2][...] = 0
        np.testing.assert_array_equal(running.predict(x), expected)
        other = engine._evaluation.predict(x, 1 - tick % 2)
        np.testing.assert_allclose(other, np.full((2, 3), 1 / 3), rtol=1e-6)


def test_a_batch_is_filled_with_its_own_last_image() -> None:
    """Numbers of earlier images might not be finite after the network, and would be reported."""
    seen: list[np.ndarray] = []
    with context(check_batch_size=4) as running:
        engine = engine_of(running)
        running.predict(np.zeros((1, 6), np.float32))
        prediction: Any = engine._evaluation._prediction
        running.predict(np.full((4, 6), 7, np.float32))
        running.predict(np.array([[1.0] * 6, [2.0] * 6], np.float32))
        seen.append(prediction._images[0, :, 0].copy())
    assert seen[0].tolist() == [1, 2, 2, 2]


def test_an_error_names_batch_and_operator() -> None:
    trap = Trap(raising(KeyError("broken")), call=2)
    with context(perceptron(CheckProbe(action=trap)), data=blobs(), check_batch_size=4) as running:
        with pytest.raises(TaskError, match=r"^task 2 failed in operator 'CheckProbe1' while predicting: KeyError"):
            running.predict(np.ones((20, 6), np.float32))
        assert trap.sprung
        assert running.predict(np.ones((20, 6), np.float32)).shape == (20, 3)
