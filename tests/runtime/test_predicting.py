"""Prediction alone, with initial values and without anything that training needs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from crossbow import DataflowNode, GraphError, Operator, SubGraph, SystemConf
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import Graph, build
from crossbow.kernels.cpu.onednn.shared_library import why_unusable
from crossbow.ops import BatchNorm, Embedding, InnerProduct, ReLU, Reshape, Values
from crossbow.runtime import predicting
from crossbow.runtime.device import CpuDevice
from crossbow.runtime.predicting import NetworkPrediction
from crossbow.runtime.prediction import ImageKind
from crossbow.types import CrossbowError, TaskError
from tests.support import SECONDS, chain, within

WEIGHTS = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
SYSTEM = SystemConf(devices="cpu", learners_per_device=4, threads_per_learner=1, kernels="reference")
ROWS = ImageKind((6,), np.dtype(np.float32), 1.0)
X = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)


def graph(*kernels: Any) -> Graph:
    return derive_prediction(build(SubGraph(chain(*kernels)[0]).nodes))


def layer(**options: Any) -> InnerProduct:
    return InnerProduct(number_of_outputs=3, weight_initialiser=Values(WEIGHTS), bias=False, **options)


def predict(network: Graph, images: np.ndarray, batch: int = 2) -> np.ndarray:
    scale = 1 / 255 if images.dtype == np.uint8 else 1.0
    prediction = NetworkPrediction(network, ImageKind(images.shape[1:], images.dtype, scale, batch), SYSTEM)
    try:
        return prediction(images)
    finally:
        prediction.close()


@pytest.mark.parametrize("batch", [1, 2, 5, 8])
def test_initial_values_are_used(batch: int) -> None:
    np.testing.assert_allclose(predict(graph(layer(), ReLU()), X, batch), np.maximum(X @ WEIGHTS.T, 0), rtol=1e-5)


def test_running_statistics_have_initial_values_too() -> None:
    mean, variance = np.array([1, 2, 3], np.float32), np.array([4, 1, 0.25], np.float32)
    norm = BatchNorm(epsilon=1e-5, mean_initialiser=Values(mean), variance_initialiser=Values(variance))
    expected = (X @ WEIGHTS.T - mean) / np.sqrt(variance + 1e-5)
    np.testing.assert_allclose(predict(graph(layer(), norm), X), expected, rtol=1e-4, atol=1e-5)


def test_pixels_are_divided_by_255() -> None:
    pixels = np.array([[0, 51, 255, 102, 0, 204]], np.uint8)
    np.testing.assert_allclose(predict(graph(layer()), pixels), pixels / 255 @ WEIGHTS.T, rtol=1e-5, atol=1e-6)


def test_its_threads_end() -> None:
    before = set(threading.enumerate())
    prediction = NetworkPrediction(graph(layer()), ROWS, SYSTEM)
    assert {thread.name for thread in set(threading.enumerate()) - before} == {"learner-0"}  # one on each stream
    prediction.close()
    assert set(threading.enumerate()) <= before
    assert prediction._more_streams(1) == []
    for _ in range(2):
        with pytest.raises(CrossbowError):
            within(SECONDS, lambda: prediction(X))


def test_a_network_that_does_not_fit_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(GraphError, match="Reshape"):
        NetworkPrediction(graph(Reshape(shape=(5,))), ROWS, SYSTEM)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("wanted", "streams"), [(None, 1), (1, 5), (2, 2), (3, 1), (5, 1)])
def test_a_cpu_has_as_many_streams_as_there_is_room_for(
    wanted: int | None, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "parse_devices", lambda names: (CpuDevice("cpu", (0, 1, 2, 3, 4)),))
    assert predicting._streams(SystemConf(devices="cpu", threads_per_learner=wanted)) == streams


def test_a_name_is_that_of_the_operator() -> None:
    node = DataflowNode(Operator("mine", layer()))
    with pytest.raises(GraphError, match="'mine'"):
        predict(derive_prediction(build(SubGraph(node).nodes)), np.ones((2, 7), np.float32))


@pytest.mark.skipif(why_unusable() is not None, reason="native programs need oneDNN")
def test_a_native_failure_names_its_part() -> None:
    """Of any thread; the message is that of the operator."""
    network = graph(Embedding(7, 3, weight_initialiser=Values(np.ones((7, 3), np.float32))))
    sequences = np.zeros((100, 6), np.float32)
    prediction = NetworkPrediction(network, ROWS, SystemConf(devices="cpu", threads_per_learner=1))
    try:
        expected = prediction(sequences)
        for example in (0, 40, 99):
            wrong = sequences.copy()
            wrong[example, 5] = 7
            for images in (wrong, wrong[example : example + 1]):
                with pytest.raises(TaskError, match=r"'Embedding0' while predicting: ExampleError: .*7"):
                    prediction(images)
        np.testing.assert_array_equal(prediction(sequences), expected)
    finally:
        prediction.close()
