"""Compiled biases against the reference, in both layouts."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import BiasBackward, BiasForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, both, close, draw

SHAPES: list[tuple[Shape, Layout]] = [
    ((3, 5, 4, 3), Layout.CHANNELS_LAST),
    ((3, 5, 4, 3), Layout.PLAIN),
    ((3, 5, 7), Layout.PLAIN),
    ((2, 3, 2, 3, 4), Layout.PLAIN),
    ((4, 5), Layout.PLAIN),
]


@pytest.mark.parametrize(("shape", "layout"), SHAPES)
def test_a_bias_is_added_to_its_channel(shape: Shape, layout: Layout) -> None:
    y = Tensor(shape, FLOAT32, layout)
    request = BiasForward(y, Variable(shape[1:2], FLOAT32))
    values = {"output": draw(shape), "bias": draw(shape[1:2], 1)}
    actual, expected = both(COMPILED, request, {"output": y}, values, by="numba")
    np.testing.assert_array_equal(actual["output"], expected["output"])


@pytest.mark.parametrize(("shape", "layout"), SHAPES)
def test_the_gradient_of_a_bias(shape: Shape, layout: Layout) -> None:
    dy = Tensor(shape, FLOAT32, layout)
    request = BiasBackward(dy, Variable(shape[1:2], FLOAT32))
    tensors = {"output_gradient": dy, "bias_gradient": Tensor(shape[1:2], FLOAT32)}
    values = {"output_gradient": 1000 + draw(shape)}  # badly rounded if added up in float32
    actual, expected = both(COMPILED, request, tensors, values, by="")
    close(actual["bias_gradient"], expected["bias_gradient"])
