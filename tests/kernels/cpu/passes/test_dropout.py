"""Compiled dropout: the mask of the reference, bit for bit, in the order of logical elements."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import DropoutBackward, DropoutForward
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, SHAPES, both, draw, state, tensor


@pairwise
@pytest.mark.parametrize("shape", [*SHAPES, (5, 3, 7, 11), (9, 1023), (2, 8, 40, 40)])
@pytest.mark.parametrize(("ratio", "seed", "key", "task"), [(0.4, 7, 3, 5), (0.0, 0, 0, 0), (0.9, 2**40 + 1, 9, 2**33)])
def test_it_is_bit_identical(shape: Shape, ratio: float, seed: int, key: int, task: int) -> None:
    """Also over several chunks, and where a word of four belongs to the next chunk."""
    t, where = tensor(shape), {"state": state(TASK=task)}
    for request, read, write in (
        (DropoutForward(t, t, ratio, seed, key), "input0", "output"),
        (DropoutBackward(t, t, ratio, seed, key), "output_gradient", "input_gradient"),
    ):
        actual, expected = both(COMPILED, request, {read: t, write: t}, {read: draw(shape), **where}, by="numba")
        np.testing.assert_array_equal(actual[write], expected[write])
        assert ratio == 0 or t.elements < 100 or 0 < (actual[write] == 0).sum() < t.elements


def test_tensors_in_different_orders_are_left_to_the_reference() -> None:
    last, plain = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.CHANNELS_LAST, Layout.PLAIN))
    for request in (DropoutForward(last, plain, 0.5, 0, 0), DropoutBackward(last, plain, 0.5, 0, 0)):
        assert COMPILED.prepare(request).name.endswith("reference")
