"""Copies between a plain order and channels last, by oneDNN's reorder."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import CopyBackward, CopyForward
from crossbow.types import Shape
from tests.kernels.cpu.running import ONEDNN, both, draw, tensor

IMAGE: Shape = (2, 20, 3, 5)


@pytest.mark.parametrize("flat", [(2, 300), (40, 15), (600,), (2, 20, 15)])
def test_it_agrees_with_the_reference(flat: Shape) -> None:
    x, y, values = tensor(IMAGE), tensor(flat), draw(IMAGE)
    for one, other in ((x, y), (y, x)):
        given = values.reshape(one.shape)
        actual, expected = both(
            ONEDNN, CopyForward(one, other), {"input0": one, "output": other}, {"input0": given}, by=":"
        )
        np.testing.assert_array_equal(actual["output"], expected["output"])
        tensors = {"output_gradient": one, "input_gradient": other}
        actual, expected = both(ONEDNN, CopyBackward(one, other), tensors, {"output_gradient": given}, by=":")
        np.testing.assert_array_equal(actual["input_gradient"], expected["input_gradient"])


def test_where_nothing_moves_or_both_orders_differ_it_is_not_asked() -> None:
    same = ONEDNN.prepare(CopyForward(tensor((2, 3)), tensor((6,))))
    other = ONEDNN.prepare(CopyForward(tensor((2, 3, 4, 5)), tensor((2, 5, 4, 3))))
    assert ":" not in same.name
    assert ":" not in other.name
