"""oneDNN's softmax against the reference, also for NaN and infinity."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import SoftmaxForward
from crossbow.types import Shape
from tests.kernels.cpu.comparisons import normalise, normalise_non_finite
from tests.kernels.cpu.running import ONEDNN, SHAPES, draw, execute, memory, tensor


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [1, -1])
def test_it_agrees_with_the_reference(shape: Shape, axis: int) -> None:
    normalise(ONEDNN, shape, axis, by=":")


def test_non_finite_numbers() -> None:
    """oneDNN's primitive alone would give numbers."""
    t = tensor((6, 37))
    normalise_non_finite(SoftmaxForward(t, t, 1), ONEDNN, by=":")


@pytest.mark.parametrize("axis", [1, 3])
def test_marks_of_images_are_those_of_their_own_rows(axis: int) -> None:
    t, x = tensor((2, 5, 3, 4)), draw((2, 5, 3, 4))
    x[1, 2, 0, 3] = np.nan
    buffers = {"input0": memory(t, x), "output": memory(t)}
    execute(ONEDNN.prepare(SoftmaxForward(t, t, axis)), buffers)
    expected = np.zeros(x.shape, bool)
    expected[(1, slice(None), 0, 3) if axis == 1 else (1, 2, 0)] = True
    np.testing.assert_array_equal(np.isnan(buffers["output"]), expected)
