"""The compiled concatenation, along every axis and in both layouts."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import ConcatBackward, ConcatForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, both, draw, tensor


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(2, 3, 4, 5), (2, 7, 4, 5), (2, 1, 4, 5)], 1),
        ([(2, 3, 4, 5), (2, 3, 1, 5)], 2),
        ([(2, 3, 4, 5), (2, 3, 4, 2)], 3),
        ([(2, 3, 4, 5), (1, 3, 4, 5)], 0),
        ([(2, 3), (2, 40)], 1),
        ([(2, 3, 1), (2, 3, 4), (2, 3, 2)], 2),
        ([(3,), (4,)], 0),
        ([(3, 2)], 1),
    ],
)
def test_each_input_is_a_slice_of_the_output(shapes: list[Shape], axis: int) -> None:
    xs, whole = [tensor(shape) for shape in shapes], np.concatenate([draw(shape) for shape in shapes], axis=axis)
    y = tensor(whole.shape)
    tensors = {"output": y, **{f"input{number}": x for number, x in enumerate(xs)}}
    values = {f"input{number}": draw(shape) for number, shape in enumerate(shapes)}
    fast, _ = both(COMPILED, ConcatForward(tuple(xs), y, axis), tensors, values, by="numba")
    np.testing.assert_array_equal(fast["output"], whole)
    start = 0
    for x, shape in zip(xs, shapes, strict=True):
        tensors = {"output_gradient": y, "input_gradient": x}
        fast, _ = both(COMPILED, ConcatBackward(y, x, axis, start), tensors, {"output_gradient": whole}, by="numba")
        np.testing.assert_array_equal(fast["input_gradient"], draw(shape))
        start += shape[axis]


def test_tensors_in_different_orders_are_left_to_the_reference() -> None:
    last, plain = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.CHANNELS_LAST, Layout.PLAIN))
    y = Tensor((2, 6, 4, 5), FLOAT32, Layout.CHANNELS_LAST)
    for request in (ConcatForward((last, plain), y, 1), ConcatBackward(y, plain, 1, 3)):
        assert COMPILED.prepare(request).name.endswith("reference")
