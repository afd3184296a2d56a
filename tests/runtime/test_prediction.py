"""The prediction of a base model: batch by batch, with either of z's buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.data import synthetic
from crossbow.runtime.prediction import PARTS, Division, StreamPrediction, divide, most_at_once
from crossbow.types import TaskError
from tests.support import CheckProbe, Trap, blobs, context, perceptron, raising


@pytest.mark.parametrize("most", [1, 4, 16, 64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 40, 64, 129, 1000])
def test_images_are_divided_by_their_number_only(count: int, most: int) -> None:
    """Without gaps, largest parts first; two images or more are at least two parts."""
    parts = divide(count, most)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert set(sizes) <= {size for size in PARTS if size <= most}
    assert len(parts) >= min(count, 2)


def test_a_smaller_test_batch_limits_the_parts() -> None:
    assert [most_at_once(size) for size in (None, 7, 1000)] == [64, 7, 64]


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


@pytest.mark.parametrize(("threads", "kernels"), [(1, "onednn"), (2, "onednn"), (1, "reference")])
def test_threads_take_parts_in_turn_if_each_computes_native_work_alone(
    threads: int, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    divided, divide = list[bool](), StreamPrediction.division

    def noted(stream: StreamPrediction, images: int) -> Division | None:
        division = divide(stream, images)
        divided.append(division is not None)
        return division

    monkeypatch.setattr(StreamPrediction, "division", noted)
    data = synthetic((6,), 3, training=40, check=4)
    with context(data=data, learners=1, threads=threads, kernels=kernels) as running:
        running.predict(np.ones((5, 6), np.uint8))
    assert divided
    assert set(divided) == {threads == 1 and kernels == "onednn"}


@pytest.mark.parametrize("count", [1, 2])
def test_a_single_part_is_computed_in_its_own_memory(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, share = list[Division](), StreamPrediction.share

    def noted(stream: StreamPrediction, division: Division, *given: Any) -> None:
        shared.append(division)
        share(stream, division, *given)

    monkeypatch.setattr(StreamPrediction, "share", noted)
    with context(data=synthetic((6,), 3, training=40, check=4), learners=1, kernels="onednn") as running:
        running.predict(np.ones((count, 6), np.uint8))
    assert shared
    assert all((each.single is not None, len(each.plan.parts)) == (count == 1, count) for each in shared)


def test_an_error_names_the_operator() -> None:
    trap = Trap(raising(KeyError("broken")), call=1)
    with context(perceptron(CheckProbe(action=trap)), data=blobs(), learners=1, check_batch_size=4) as running:
        with pytest.raises(TaskError, match=r"failed in operator 'CheckProbe1' while predicting: KeyError"):
            running.predict(np.ones((20, 6), np.float32))
        assert trap.sprung
        assert running.predict(np.ones((20, 6), np.float32)).shape == (20, 3)
