"""Keras' networks for channels-last images, as tf2onnx writes them: a first Transpose, and one before the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from crossbow import DataError, Dataflow, DataflowNode, Dataset, Operator, Predictor, SubGraph
from crossbow.onnx import load, save
from crossbow.ops import SoftMaxLoss
from tests.onnx.models import draw, model, node, run_crossbow, run_onnx
from tests.support import KERNELS, context

X = draw(40, 9, 9, 3)


def keras(*, last: str = "Reshape") -> onnx.ModelProto:
    """Conv2D with its bias, activation, ZeroPadding2D, MaxPooling2D; Flatten or GlobalAveragePooling2D; Dense."""
    rows = {
        "Reshape": [
            node("Transpose", "p", "q", "last_transpose", perm=[0, 2, 3, 1]),
            node("Reshape", "q shape", "f", "flatten"),
        ],
        "ReduceMean": [node("ReduceMean", "p", "f", "mean", axes=[2, 3], keepdims=0)],
        "Squeeze": [node("GlobalAveragePool", "p", "q", "mean"), node("Squeeze", "q places", "f", "squeeze")],
    }[last]
    nodes = [
        node("Transpose", "x", "t", "first_transpose", perm=[0, 3, 1, 2]),
        node("Conv", "t w b", "c", "conv2d", kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Relu", "c", "r", "relu"),
        node("Pad", "r border", "d", "zero_padding2d"),
        node("MaxPool", "d", "p", "max_pooling2d", kernel_shape=[2, 2], strides=[2, 2]),
        *rows,
        node("MatMul", "f w1", "m", "dense"),
        node("Add", "m b1", "a", "bias_add"),
        node("Softmax", "a", "y", "softmax"),
    ]
    features = 54 if last == "Reshape" else 6
    given = {"w": draw(6, 3, 3, 3), "b": draw(6), "w1": draw(features, 3), "b1": draw(3)}
    given |= {"border": np.array([0, 0, 1, 0, 0, 0, 0, 1]), "shape": np.array([-1, 54]), "places": np.array([2, 3])}
    return model(nodes, ["N", 9, 9, 3], **given)


@pytest.mark.parametrize("last", ["Reshape", "ReduceMean", "Squeeze"])
@pytest.mark.parametrize("fast", [False, True])
def test_it_predicts_what_onnxruntime_does(last: str, fast: bool) -> None:
    proto = keras(last=last)
    expected = run_onnx(proto, x=X)
    np.testing.assert_allclose(run_crossbow(load(proto), X, fast=fast), expected, rtol=1e-5, atol=1e-6)
    with Predictor(load(proto)) as predictor:
        np.testing.assert_allclose(predictor.predict(X), expected, rtol=1e-5, atol=1e-6)


def test_the_order_of_the_rows_is_that_of_height_width_channels() -> None:
    """With weights that tell every place apart."""
    nodes = [
        node("Transpose", "x", "t", perm=[0, 3, 1, 2]),
        node("Relu", "t", "r"),
        node("Transpose", "r", "q", perm=[0, 2, 3, 1]),
        node("Flatten", "q", "f"),
        node("MatMul", "f w", "y"),
    ]
    proto = model(nodes, ["N", 2, 3, 4], w=np.arange(24, dtype=np.float32)[:, None])
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    assert run_crossbow(load(proto), x).item() == sum(i * i for i in range(24)) == run_onnx(proto, x=x).item()


@KERNELS
def test_it_trains_on_and_is_saved(tmp_path: Path, kernels: str) -> None:
    network = load(keras())
    network.tail.connect_to(DataflowNode(Operator("loss", SoftMaxLoss())))
    dataflow, y = Dataflow(SubGraph(network.head)), np.argmax(X.mean((1, 2)), 1)
    with context(dataflow, data=Dataset((X, y), channels_last=True), kernels=kernels) as run:
        history = run.train(5)
        assert history.records[-1].loss < history.records[0].loss
        save(run, tmp_path / "tuned.onnx")
        tuned = run_onnx(onnx.load(tmp_path / "tuned.onnx"), input=X)
        np.testing.assert_allclose(tuned, run.predict(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run_crossbow(load(tmp_path / "tuned.onnx"), X), tuned, rtol=1e-4, atol=1e-5)


def test_channels_last_images_have_to_be_called_so() -> None:
    with pytest.raises(DataError, match=r"channels_last=True for a channels-last network"):
        Dataset((X, np.zeros(len(X), np.int64)))
