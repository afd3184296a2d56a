"""ONNX layers of any opset, as Crossbow's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import GraphError
from crossbow.onnx import load
from crossbow.ops import (
    Dropout,
    SoftMax,
)
from tests.onnx.models import draw, kernel_of, model, node, run_crossbow, same


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


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("op_type", ["Conv", "MaxPool", "AveragePool"])
def test_windows_are_those_of_onnx(op_type: str, auto_pad: str) -> None:
    """An odd border is larger after the image, or before it."""
    options: dict[str, Any] = {"kernel_shape": [2, 3], "strides": [2, 1], "auto_pad": auto_pad}
    if auto_pad == "NOTSET":
        options["pads"] = [1, 0, 0, 2]
    inputs = "x w b" if op_type == "Conv" else "x"
    proto = model([node(op_type, inputs, "y", "it", **options)], ["N", 2, 5, 6], w=draw(4, 2, 2, 3), b=draw(4))
    kernel = kernel_of(same(proto, draw(3, 2, 5, 6)), "it")
    assert kernel.stride == (2, 1)
    expected = {"SAME_UPPER": ((0, 1), (1, 1)), "SAME_LOWER": ((1, 0), (1, 1)), "VALID": 0, "NOTSET": ((1, 0), (0, 2))}
    assert kernel.padding == expected[auto_pad]


@pytest.mark.parametrize(("dilation", "groups"), [(1, 2), (2, 1), (2, 2)])
def test_convolutions_of_groups_and_dilated_ones(dilation: int, groups: int) -> None:
    options = {"kernel_shape": [2, 2], "dilations": [dilation, 1], "group": groups}
    proto = model([node("Conv", "x w", "y", "it", **options)], ["N", 2, 6, 6], w=draw(4, 2 // groups, 2, 2))
    kernel = kernel_of(same(proto), "it")
    assert (kernel.groups, kernel.bias) == (groups, False)


@pytest.mark.parametrize("rounding", [0, 1])
@pytest.mark.parametrize("counted", [0, 1])
def test_average_pooling_counts_its_border_if_the_model_says_so(counted: int, rounding: int) -> None:
    options = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    it = node("AveragePool", "x", "y", "it", count_include_pad=counted, ceil_mode=rounding, **options)
    kernel = kernel_of(same(model([it], ["N", 2, 6, 6])), "it")
    assert (kernel.count_padding, kernel.rounding) == (counted == 1, "ceil" if rounding else "floor")


@pytest.mark.parametrize("bias", ["none", "a vector", "a number", "an activation"])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_with_its_factors(transposed: int, bias: str) -> None:
    """α and β are in the variables, if these are constants."""
    last = {"none": "", "a vector": "c", "a number": "c", "an activation": "t"}[bias]
    nodes = [node("Tanh", "x", "t"), node("Gemm", f"x w {last}", "y", "it", alpha=0.5, beta=2.0, transB=transposed)]
    given = {"w": draw(4, 4), "c": draw(4) if bias == "a vector" else draw(1)}
    network = same(model(nodes, ["N", 4], **given), draw(3, 4))
    if bias in ("a vector", "a number"):
        kernel = kernel_of(network, "it")
        weights = given["w"] if transposed else given["w"].T
        np.testing.assert_array_equal(kernel.weight_initialiser.array, weights * np.float32(0.5))
        np.testing.assert_array_equal(kernel.bias_initialiser.array, np.broadcast_to(given["c"] * 2, 4))


@pytest.mark.parametrize("size", [1, 3])
def test_a_normalisation_over_neighbouring_channels(size: int) -> None:
    """Over one channel, y = x / (κ + α x²)^β."""
    proto = model([node("LRN", "x", "y", "it", size=size, alpha=0.5, beta=0.6, bias=2.0)], ["N", 4, 3, 3])
    x = draw(2, 4, 3, 3)
    network = same(proto, x)
    if size == 1:
        np.testing.assert_allclose(run_crossbow(network, x), x / (2 + 0.5 * x**2) ** 0.6, rtol=1e-6)
    kernel = kernel_of(network, "it")
    assert (kernel.size, kernel.alpha, kernel.beta, kernel.kappa) == (size, 0.5, 0.6, 2.0)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("options", [{}, {"keepdims": 0}, {"select_last_index": 1}])
def test_the_index_of_the_largest(op_type: str, options: dict[str, int]) -> None:
    """Of several that are alike, the first or the last."""
    nodes = [node(op_type, "x", "i", axis=1, **options), node("Cast", "i", "y", to=1)]
    same(model(nodes, ["N", 4]), np.array([[1, 3, 3, 0], [0, 0, 2, 2], [5, 5, 5, 5]], np.float32))


@pytest.mark.parametrize(
    ("op_type", "attributes", "weights", "message"),
    [
        ("Conv", {"auto_pad": "SAME"}, (4, 2, 3, 3), "expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER"),
        ("Conv", {"pads": [1, 1]}, (4, 2, 3, 3), "expected pads ≥ 0, two for each of 2 dimensions"),
        ("Conv", {"strides": [1]}, (4, 2, 3, 3), "expected kernel, strides and dilations for 2 dimensions"),
        ("Gemm", {}, (4, 4), "expected an input of two dimensions. Received: 4"),
        ("Concat", {"axis": 7}, (4, 4), "expected an axis of 4 dimensions. Received: axis=7"),
        ("MaxPool", {}, (1,), "expected a kernel_shape for 2 dimensions. Received: None"),
    ],
)
def test_layers_that_do_not_fit_are_refused(
    op_type: str, attributes: dict[str, Any], weights: tuple[int, ...], message: str
) -> None:
    inputs = "x" if op_type in ("MaxPool", "Concat") else "x w"
    with pytest.raises(GraphError, match=rf"^node 'it' \({op_type}\): {message}"):
        load(model([node(op_type, inputs, "y", "it", **attributes)], ["N", 2, 6, 6], w=draw(*weights)))
