"""The compiled logarithmic softmax against the reference, and to float32's last digit."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import LogSoftmaxBackward, LogSoftmaxForward
from crossbow.types import Shape
from tests.kernels.cpu.buffers import COMPILED, SHAPES, both, close, draw, execute, memory, tensor
from tests.kernels.cpu.comparisons import normalise_non_finite


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [1, -1])
def test_it_agrees_with_the_reference(shape: Shape, axis: int) -> None:
    t, x = tensor(shape), 5 * draw(shape)
    request = LogSoftmaxForward(t, t, axis)
    actual, expected = both(COMPILED, request, {"input0": t, "output": t}, {"input0": x}, by="numba")
    close(actual["output"], expected["output"])
    values = {"output": expected["output"], "output_gradient": draw(shape, 1)}
    tensors = dict.fromkeys([*values, "input_gradient"], t)
    actual, expected = both(COMPILED, LogSoftmaxBackward(t, t, t, axis), tensors, values, by="numba")
    close(actual["input_gradient"], expected["input_gradient"])


def test_small_probabilities_keep_their_digits() -> None:
    """Of a class that is 1000 below the largest, the probability is 0 in float32, and its logarithm −1000."""
    t, x = tensor((1, 3)), np.array([[1000.0, 0.0, 999.0]])
    buffers = {"input0": memory(t, x), "output": memory(t)}
    execute(COMPILED.prepare(LogSoftmaxForward(t, t, 1)), buffers)
    exact = x - 1000 - np.log1p(np.exp(-1.0))
    np.testing.assert_allclose(buffers["output"], exact, rtol=3e-7)


def test_non_finite_numbers() -> None:
    t = tensor((6, 37))
    normalise_non_finite(LogSoftmaxForward(t, t, 1), COMPILED, by="numba")
