"""ONNX operators that Crossbow lacks, read as the operators that they equal."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from crossbow import GraphError
from crossbow.onnx import load
from crossbow.ops import Broadcast, ReLU
from tests.onnx.models import draw, kernel_of, model, node, operators, same


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_a_reduction_over_all_places_is_a_global_pooling(op_type: str, keepdims: int, opset: int) -> None:
    if opset < 18:
        proto = model([node(op_type, "x", "y", axes=[2, 3], keepdims=keepdims)], ["N", 2, 6, 6], opset=opset)
    else:
        nodes = [node(op_type, "x axes", "y", keepdims=keepdims)]
        proto = model(nodes, ["N", 2, 6, 6], opset=opset, axes=np.array([-1, 2]))
    kinds = [kind for _, kind in operators(same(proto))]
    assert kinds == ["Pool"] + ["Flatten"] * (1 - keepdims)


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceMax"])
def test_a_reduction_over_one_spatial_dimension_is_a_pooling(op_type: str) -> None:
    kernel = kernel_of(same(model([node(op_type, "x", "y", "it", axes=[3])], ["N", 2, 4, 6]), draw(3, 2, 4, 6)), "it")
    assert (kernel.kernel_size, kernel.stride) == ((1, 6), (1, 6))
    with pytest.raises(
        GraphError, match=r"'it' .* keepdims=1 if spatial dimensions are left. Received: keepdims=0, and \[3\] of"
    ):
        load(model([node(op_type, "x", "y", "it", axes=[3], keepdims=0)], ["N", 2, 4, 6]))
    with pytest.raises(GraphError, match=r"'it' .* after the channels. Received: \[1, 3\] of \(N, 2"):
        load(model([node(op_type, "x", "y", "it", axes=[1, 3])], ["N", 2, 4, 6]))


@pytest.mark.parametrize("opset", [6, 11, 17])
def test_clip_in_its_forms(opset: int) -> None:
    if opset < 11:
        proto = model([node("Clip", "x", "y", "clip", min=0.0, max=6.0)], ["N", 4], opset=opset)
    else:
        proto = model(
            [node("Clip", "x low high", "y", "clip")],
            ["N", 4],
            opset=opset,
            low=np.array(0, np.float32),
            high=np.array(6, np.float32),
        )
    assert kernel_of(load(proto), "clip") == ReLU(mode="clipped", ceiling=6)
    proto = model([node("Clip", "x low", "y", "clip")], ["N", 4], low=np.array(0, np.float32))
    assert kernel_of(same(proto, draw(3, 4)), "clip") == ReLU()
    with pytest.raises(GraphError, match=r"'clip' \(Clip\): expected min=0"):
        load(model([node("Clip", "x low", "y", "clip")], ["N", 4], low=np.array(-1, np.float32)))


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE])
def test_a_cast_between_numbers_does_nothing(kind: int) -> None:
    network = load(model([node("Relu", "x", "r", "relu"), node("Cast", "r", "y", "cast", to=kind)], ["N", 4]))
    assert operators(network) == [("relu", "ReLU")]


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT16])
def test_a_cast_to_other_types_is_refused(kind: int) -> None:
    with pytest.raises(GraphError, match=rf"'cast' \(Cast\): expected a cast to float or double. Received: to={kind}$"):
        load(model([node("Relu", "x", "r"), node("Cast", "r", "y", "cast", to=kind)], ["N", 4]))


def test_an_expansion_repeats_the_elements_of_each_example() -> None:
    proto = model([node("Expand", "x shape", "y", "it")], ["N", 1, 6, 1], shape=np.array([1, 3, 1, 5]))
    assert kernel_of(same(proto, draw(4, 1, 6, 1)), "it") == Broadcast(shape=(3, 6, 5))
    with pytest.raises(GraphError, match=r"expected an expansion within examples of \(N, 1, 6, 1\), not of their numb"):
        load(model([node("Expand", "x shape", "y", "it")], ["N", 1, 6, 1], shape=np.array([2, 1, 1, 1, 1])))
