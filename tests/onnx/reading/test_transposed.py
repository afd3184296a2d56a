"""Transposed convolutions of ONNX, compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow.onnx import load
from crossbow.types import GraphError
from tests.onnx.models import draw, kernel_of, model, node, same


@pytest.mark.parametrize(
    ("options", "padding", "more"),
    [
        ({}, 0, 0),
        ({"pads": [1, 0, 0, 2]}, ((1, 0), (0, 2)), 0),
        ({"strides": [2, 3], "output_padding": [1, 2]}, 0, (1, 2)),
        ({"strides": [2, 2], "auto_pad": "SAME_UPPER"}, ((0, 0), (0, 1)), 0),
        ({"strides": [2, 2], "auto_pad": "SAME_LOWER"}, ((0, 0), (1, 0)), 0),
        ({"strides": [2, 2], "auto_pad": "VALID"}, 0, 0),
        ({"strides": [2, 2], "output_shape": [8, 10]}, ((1, 1), (2, 1)), 0),
        ({"strides": [2, 3], "output_shape": [11, 18]}, 0, (1, 0)),
        ({"dilations": [2, 1], "group": 2}, 0, 0),
    ],
)
def test_sizes_are_those_of_onnx(options: dict[str, Any], padding: Any, more: Any) -> None:
    weights = draw(2, 4 // options.get("group", 1), 2, 3)
    proto = model([node("ConvTranspose", "x w b", "y", "it", **options)], ["N", 2, 5, 6], w=weights, b=draw(4))
    kernel = kernel_of(same(proto, draw(3, 2, 5, 6)), "it")
    assert (kernel.padding, kernel.output_padding) == (padding, more)
    assert kernel.number_of_outputs == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auto_pad": "SAME"}, "expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER"),
        ({"pads": [1, 1]}, "expected pads ≥ 0, two for each of 2 dimensions"),
        ({"strides": [1]}, "expected kernel, strides, dilations and output_padding for 2 dimensions"),
        ({"output_shape": [4]}, r"expected an output_shape of 2 dimensions\. Received: \(4,\)"),
        ({"kernel_shape": [3, 3]}, r"expected kernel_shape to be that of the weights, \(2, 3\)"),
        ({"output_padding": [1, 0]}, "output_padding must be less than stride=1"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    proto = model([node("ConvTranspose", "x w", "y", "it", **options)], ["N", 2, 5, 6], w=draw(2, 4, 2, 3))
    with pytest.raises(GraphError, match=rf"'it' \(ConvTranspose\): .*{message}"):
        load(proto)
