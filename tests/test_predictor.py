"""Prediction with a network as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import ConfigurationError, CrossbowError, DataError, GraphError, Predictor, SubGraph, SystemConf
from crossbow.ops import LRN, BatchNorm, Conv, InnerProduct, Pool, ReLU, SoftMax, SoftMaxLoss, Values
from tests.kernels.cuda.fake import fake_cuda
from tests.onnx.models import draw, run_crossbow
from tests.support import KERNELS, chain


def network(*more: Any) -> SubGraph:
    convolution = Conv(number_of_outputs=4, kernel_size=3, weight_initialiser=Values(draw(4, 2, 3, 3)))
    normalisation = BatchNorm(mean_initialiser=Values(draw(4)), variance_initialiser=Values(np.abs(draw(4)) + 0.5))
    weights = InnerProduct(number_of_outputs=3, weight_initialiser=Values(draw(3, 4)))
    return SubGraph(chain(convolution, normalisation, ReLU(), Pool(global_pooling=True), weights, *more)[0])


X = draw(70, 2, 8, 8)


@KERNELS
def test_it_predicts_without_a_loss(kernels: str) -> None:
    with Predictor(network(), batch_size=32, system=SystemConf(kernels=kernels)) as predictor:
        for count in (1, 32, 70, 5):
            received = predictor.predict(X[:count])
            np.testing.assert_allclose(received, run_crossbow(network(), X[:count]), rtol=1e-5, atol=1e-5)


def test_a_loss_is_left_out() -> None:
    with Predictor(network(SoftMax(), SoftMaxLoss())) as predictor:
        probabilities = predictor.predict(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(probabilities, run_crossbow(network(SoftMax()), X), rtol=1e-5, atol=1e-6)


def test_images_of_other_sizes_and_types() -> None:
    with Predictor(network()) as predictor:
        for images in (X, X[:, :, :5], X.astype(np.float64), (X > 0).astype(np.uint8)):
            scaled = images / 255 if images.dtype == np.uint8 else images
            np.testing.assert_allclose(predictor.predict(images), run_crossbow(network(), scaled), rtol=1e-4, atol=1e-5)


def test_on_a_gpu() -> None:
    with fake_cuda(), Predictor(network(), system=SystemConf(devices="cuda:0")) as predictor:
        np.testing.assert_allclose(predictor.predict(X), run_crossbow(network(), X), rtol=1e-5, atol=1e-5)


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    predictor = Predictor(network())
    predictor.predict(X)
    assert threading.active_count() > before
    predictor.close()
    assert threading.active_count() == before
    with pytest.raises(CrossbowError, match="the predictor is closed"):
        predictor.predict(X)


FORKS = """
import os
import numpy as np
from crossbow import CrossbowError, Predictor, SubGraph
from crossbow.ops import InnerProduct
from tests.support import chain

def attempt(what, work):
    try:
        work()
        print(what, "done", flush=True)
    except CrossbowError as error:
        assert str(os.getpid()) in str(error) and "Make a predictor in every process" in str(error), error
        print(what, "refused", flush=True)

used, new = (Predictor(SubGraph(chain(InnerProduct(number_of_outputs=2))[0])) for _ in range(2))
x = np.ones((4, 3), np.float32)
used.predict(x[:2])
process = os.fork()
if process == 0:
    attempt("predict", lambda: used.predict(x[:2]))
    attempt("more images", lambda: used.predict(x))
    attempt("close", used.close)
    attempt("a new one", lambda: new.predict(x))
    new.close()
    raise SystemExit(3)
print("fork", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
attempt("the parent", lambda: used.predict(x[:2]))
used.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")
def test_a_forked_process_has_no_thread_to_predict_on() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, encoding="utf-8", timeout=60)
    assert done.stderr == ""
    child = ["predict refused", "more images refused", "close done", "a new one done"]
    assert done.stdout.splitlines() == [*child, "fork 3", "the parent done"]


def test_three_dimensions_are_not_taken_for_images() -> None:
    """Of a network for signals (N, channels, length) the result would be another one."""
    network = SubGraph(chain(LRN(size=3))[0])
    with Predictor(network) as predictor, pytest.raises(DataError, match=r"images\[:, None\]\. Received: shape \(2, 8"):
        predictor.predict(draw(2, 8, 8))


def test_errors_in_the_graph_show_the_users_frames_only() -> None:
    with Predictor(network()) as predictor, pytest.raises(GraphError) as raised:
        predictor.predict(X[:, :1])
    assert {str(entry.path) for entry in raised.traceback} == {__file__}


def test_what_does_not_fit() -> None:
    before = threading.active_count()
    with Predictor(network()) as predictor:
        for images in (np.full((2, 2, 8, 8), np.nan), np.zeros((2, 2), object), np.zeros((0, 2, 8, 8))):
            with pytest.raises(DataError, match=r"^images: expected"):
                predictor.predict(images)
        with pytest.raises(GraphError, match="Conv0"):
            predictor.predict(X[:, :1])
        with pytest.raises(GraphError, match="Conv0"):
            predictor.predict(X[:, :, :2, :2])
        assert threading.active_count() == before
        assert predictor.predict(X).shape == (70, 3)


@pytest.mark.parametrize("values", [{"batch_size": 0}, {"batch_size": 1.5}, {"system": "cpu"}])
def test_arguments(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"^Predictor: {next(iter(values))} must be"):
        Predictor(network(), **values)


def test_a_network_is_a_subgraph() -> None:
    with pytest.raises(TypeError, match=r"^Predictor: expected a SubGraph\. Received: "):
        Predictor(5)  # type: ignore[arg-type]
