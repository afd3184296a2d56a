"""ONNX layers of any opset, as Crossbow's operators."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import GraphError
from crossbow.onnx import load
from crossbow.ops import (
    Dropout,
    SoftMax,
)
from tests.onnx.models import draw, kernel_of, model, node, same


@pytest.mark.parametrize("opset", [7, 12])
def test_dropout_in_its_forms(opset: int) -> None:
    if opset < 12:
        proto = model([node("Relu", "x", "a"), node("Dropout", "a", "y", "drop", ratio=0.3)], ["N", 4], opset=opset)
    else:
        nodes = [node("Relu", "x", "a"), node("Dropout", "a r", "y", "drop")]
        proto = model(nodes, ["N", 4], opset=opset, r=np.array(0.3, np.float32))
    assert kernel_of(same(proto, draw(3, 4)), "drop") == Dropout(ratio=0.3)


def test_softmax_before_opset_13_sums_over_all_that_follows() -> None:
    flat = model([node("Softmax", "x", "y", "p")], ["N", 4], opset=11)
    assert kernel_of(same(flat, draw(3, 4)), "p") == SoftMax(axis=1)
    image = model([node("Softmax", "x", "y", "p")], ["N", 4, 1, 1], opset=11)
    assert kernel_of(same(image, draw(3, 4, 1, 1)), "p") == SoftMax(axis=1)
    with pytest.raises(GraphError, match=r"'p' \(Softmax\): axis=1 of version 11 sums over all dimensions from it on"):
        load(model([node("Softmax", "x", "y", "p")], ["N", 2, 6, 6], opset=11))
    last = model([node("Softmax", "x", "y", "p")], ["N", 2, 6, 6], opset=13)
    assert kernel_of(same(last), "p") == SoftMax(axis=3)
