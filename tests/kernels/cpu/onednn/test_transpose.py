"""Transposes by oneDNN's reorder between strides, in both layouts, and back."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import TransposeBackward, TransposeForward
from crossbow.types import Shape
from tests.kernels.cpu.running import ONEDNN, both, draw, tensor


@pytest.mark.parametrize(
    ("shape", "sizes", "order", "target"),
    [
        ((17, 33), (17, 33), (1, 0), (33, 17)),
        ((2, 3, 4, 5), (2, 3, 4, 5), (3, 1, 0, 2), (5, 3, 2, 4)),
        ((2, 6, 4, 5), (2, 2, 3, 4, 5), (0, 2, 1, 3, 4), (2, 6, 4, 5)),
        ((4, 6, 5), (4, 6, 5), (2, 0, 1), (5, 4, 6)),
        ((2, 3, 4, 5), (2, 3, 4, 5), (0, 1, 3, 2), (2, 3, 5, 4)),
    ],
)
def test_it_agrees_with_the_reference(shape: Shape, sizes: Shape, order: tuple[int, ...], target: Shape) -> None:
    x, y = tensor(shape), tensor(target)
    forward, backward = TransposeForward(x, y, sizes, order), TransposeBackward(y, x, sizes, order)
    actual, expected = both(ONEDNN, forward, {"input0": x, "output": y}, {"input0": draw(shape)}, by=":")
    np.testing.assert_array_equal(actual["output"], expected["output"])
    tensors = {"output_gradient": y, "input_gradient": x}
    actual, expected = both(ONEDNN, backward, tensors, {"output_gradient": draw(target)}, by=":")
    np.testing.assert_array_equal(actual["input_gradient"], expected["input_gradient"])


def test_where_nothing_moves_it_is_not_asked() -> None:
    x, y = tensor((2, 3, 4, 5)), tensor((2, 4, 15))
    assert TransposeForward(x, y, (2, 3, 4, 5), (0, 2, 3, 1)).alias is not None
    assert ":" not in ONEDNN.prepare(TransposeForward(x, y, (2, 3, 4, 5), (0, 2, 3, 1))).name
