"""The compiled index of the largest value: ties, NaN, every axis, and requests for the reference."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import LargestIndex
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, both

PLAIN, LAST = Layout.PLAIN, Layout.CHANNELS_LAST


@pytest.mark.parametrize("keeps_axis", [False, True])
@pytest.mark.parametrize(
    ("shape", "layout", "axis"),
    [((5, 7), PLAIN, 1), ((5, 1), PLAIN, 1), ((5, 7), PLAIN, 0), ((3, 4, 5), PLAIN, 1), ((2, 6, 3, 4), LAST, 1)],
)
def test_it_agrees_with_the_reference(shape: Shape, layout: Layout, axis: int, keeps_axis: bool) -> None:
    values = np.random.default_rng(0).integers(-2, 2, shape).astype(np.float32)
    values[np.random.default_rng(1).random(shape) < 0.1] = np.nan
    x = Tensor(shape, FLOAT32, layout)
    y = Tensor((*shape[:axis], *[1] * keeps_axis, *shape[axis + 1 :]), FLOAT32)
    actual, expected = both(
        COMPILED, LargestIndex(x, y, axis), {"input0": x, "output": y}, {"input0": values}, by="numba"
    )
    np.testing.assert_array_equal(actual["output"], expected["output"])
    largest = np.where(np.isnan(values), np.inf, values)
    np.testing.assert_array_equal(actual["output"].reshape(-1), largest.argmax(axis).reshape(-1))


@pytest.mark.parametrize(
    "request_",
    [
        LargestIndex(Tensor((5, 7), FLOAT32), Tensor((5,), FLOAT32), 1, "last"),
        LargestIndex(Tensor((2, 6, 3, 4), FLOAT32, LAST), Tensor((2, 6, 4), FLOAT32), 2),
        LargestIndex(Tensor((2, 6, 3, 4), FLOAT32), Tensor((2, 6, 1, 4), FLOAT32, LAST), 2),
    ],
    ids=["last of equals", "rows of images", "into another order"],
)
def test_other_requests_are_left_to_the_reference(request_: LargestIndex) -> None:
    assert COMPILED.prepare(request_).name.endswith("reference")
