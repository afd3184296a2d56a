"""Resized images of ONNX, compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.onnx import load
from crossbow.ops import Upsample
from crossbow.types import GraphError
from tests.onnx.models import draw, kernel_of, model, node, same

NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
LINEAR = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
CORNERS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}


def scaled(options: dict[str, Any], *scales: float, opset: int = 20) -> Any:
    nodes = [node("Resize", "x - s", "y", "it", **options)]
    return model(nodes, ["N", 2, 5, 6], opset=opset, s=np.array(scales, np.float32))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (NEAREST, Upsample((2, 1.5))),
        (LINEAR, Upsample((2, 1.5), method="linear")),
        ({**LINEAR, "coordinate_transformation_mode": "pytorch_half_pixel"}, Upsample((2, 1.5), method="linear")),
        (CORNERS, Upsample((2, 1.5), method="linear", align_corners=True)),
        ({"mode": "nearest", "nearest_mode": "round_prefer_ceil"}, Upsample((2, 3))),
    ],
)
@pytest.mark.parametrize("opset", [13, 20])
def test_scales(options: dict[str, Any], expected: Upsample, opset: int) -> None:
    scales = expected.scale
    assert isinstance(scales, tuple)
    assert kernel_of(same(scaled(options, 1, 1, *scales, opset=opset), draw(3, 2, 5, 6)), "it") == expected


def test_sizes_of_some_axes() -> None:
    nodes = [node("Resize", "x - - s", "y", "it", axes=[-1, 2], **LINEAR)]
    proto = model(nodes, ["N", 2, 5, 6], opset=20, s=np.array([9, 7], np.int64))
    assert kernel_of(same(proto, draw(3, 2, 5, 6)), "it") == Upsample(size=(7, 9), method="linear")


def test_the_operator_before_resize() -> None:
    nodes = [node("Upsample", "x s", "y", "it")]
    proto = model(nodes, ["N", 2, 5, 6], opset=9, s=np.array([1, 1, 2, 2], np.float32))
    assert kernel_of(same(proto, draw(3, 2, 5, 6)), "it") == Upsample(2)


@pytest.mark.parametrize(
    ("options", "scales", "message"),
    [
        ({**NEAREST, "nearest_mode": "ceil"}, (1, 1, 2, 2), "expected mode='nearest' with"),
        ({**LINEAR, "mode": "cubic"}, (1, 1, 2, 2), "Received: 'cubic', 'half_pixel', 'round_prefer_floor'"),
        ({**LINEAR, "antialias": 1}, (1, 1, 2, 2), "expected antialias=0"),
        ({"mode": "nearest"}, (1, 1, 2, 1.5), r"expected whole factors .*Received: \[2\.0, 1\.5\]"),
        (CORNERS, (1, 1, 0.5, 1), r"expected factors that give whole sizes .*Received: \[0\.5, 1\.0\]"),
        (LINEAR, (1, 2, 2, 2), r"expected scales of 1 for examples and channels\. Received: \[1\.0, 2\.0\]"),
        (LINEAR, (2, 2), r"expected scales or sizes for 4 dimensions\. Received: \[2\.0, 2\.0\]"),
    ],
)
def test_what_is_refused(options: dict[str, Any], scales: tuple[float, ...], message: str) -> None:
    with pytest.raises(GraphError, match=rf"'it' \(Resize\): .*{message}"):
        load(scaled(options, *scales))
