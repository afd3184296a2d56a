"""Transforms of images are written as they are in testing, and read again."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import (
    DataflowNode,
    GraphError,
    Operator,
    Phase,
    SubGraph,
)
from crossbow.onnx import save
from crossbow.onnx.loading import read
from crossbow.ops import (
    DataTransform,
)
from crossbow.testing import run_operator
from tests.onnx.models import draw
from tests.onnx.written_models import PICTURE, check, written
from tests.operators.table import Case

MEAN_IMAGE = draw(*PICTURE[1:])


TRANSFORMS = [
    DataTransform(),
    DataTransform(crop_size=5, padding=2, mirror=True),
    DataTransform(crop_size=(6, 4), mean=0.5, scale=(0.5, 2.0, 3.0)),
    DataTransform(crop_size=(9, 4), padding=2, mean=(0.5, 0.25, -1.0)),
    DataTransform(crop_size=(7, 9), padding=1),
    DataTransform(crop_size=(3, 2), mean_image=MEAN_IMAGE, scale=0.5),
    DataTransform(mean_image=MEAN_IMAGE),
]


@pytest.mark.parametrize("kernel", TRANSFORMS, ids=repr)
def test_transforms_of_images(kernel: DataTransform) -> None:
    """What they do in testing."""
    x = draw(*PICTURE).astype(np.float64)
    expected = run_operator(kernel, [x], phase=Phase.CHECK, dtype=np.float64).outputs[0]
    check(kernel, Case(kernel, (PICTURE,)), [x], {}, expected)


def test_a_window_larger_than_an_image_with_a_mean_of_its_own_is_refused() -> None:
    node = DataflowNode(Operator("it", DataTransform(crop_size=8, padding=1, mean_image=MEAN_IMAGE)))
    with pytest.raises(GraphError, match=r"^node 'it' \(DataTransform\): expected a window inside the image"):
        save(SubGraph(node), "/nowhere", input_shape=PICTURE[1:])


def test_the_border_is_the_padding_that_is_read_again() -> None:
    """Uneven, if the window is: one row is cropped at the top, and two are added at the bottom."""
    kernel = DataTransform(crop_size=(9, 7), padding=2)
    (step,) = read(written(kernel, (PICTURE,), {})).outputs.values()
    assert isinstance(step.kernel, DataTransform)
    assert (step.kernel.crop_size, step.kernel.padding) == ((9, 7), 2)
