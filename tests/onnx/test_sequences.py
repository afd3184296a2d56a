"""A small transformer, with embedding and attention, to ONNX and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from crossbow import Dataset, ExecutionContext, ModelConf, Sequential
from crossbow.onnx import load, save
from crossbow.ops import Embedding, InnerProduct, LayerNorm, SelfAttention, SoftMax, SoftMaxLoss, Transpose
from tests.onnx.models import run_onnx


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_network_is_read_as_it_was_written(causal: bool, tmp_path: Path) -> None:
    """The operators with their training settings; onnxruntime predicts the same, with the mask."""
    layers = (
        Embedding(7, 8, weight_learning_rate_multiplier=0.5),
        LayerNorm(),
        InnerProduct(24, axis=-1),
        SelfAttention(2, causal=causal),
        InnerProduct(7, axis=-1),
        Transpose((0, 2, 1)),
        SoftMax(),
    )
    path, x = tmp_path / "transformer.onnx", np.array([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 0]], np.int32)
    data = Dataset((x, x), number_of_classes=7)
    with ExecutionContext(Sequential(*layers, SoftMaxLoss()), data=data, model=ModelConf(batch_size=2)) as context:
        save(context, path)
        predicted = context.predict(x)
    read = [node.operator.kernel for node in load(path).nodes]
    assert [type(kernel) for kernel in read] == [type(kernel) for kernel in layers]
    embedding, attention = read[0], read[3]
    assert isinstance(embedding, Embedding)
    assert (embedding.number_of_rows, embedding.number_of_outputs) == (7, 8)
    assert embedding.weight_learning_rate_multiplier == 0.5
    assert attention == SelfAttention(2, causal=causal)
    received = run_onnx(onnx.load(path), input=x.astype(np.float32))
    np.testing.assert_allclose(received, predicted, rtol=1e-4, atol=1e-6)
    differences = np.abs(received[0] - received[1]).max(axis=0)
    assert (differences[:5] == 0).all() == causal
    assert differences[5] > 0
