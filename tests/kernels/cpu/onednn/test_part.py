"""Slices and padding by oneDNN's reorder, in both layouts; interleaved slices are the pass's."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import PadBackward, PadForward, SliceBackward, SliceForward
from crossbow.types import Shape, Tensor
from tests.kernels.cpu.running import ONEDNN, both, draw, tensor


def moved(
    request: SliceForward | SliceBackward | PadForward | PadBackward, source: Tensor, target: Tensor, by: str
) -> None:
    (read,), (write,) = request.reads, request.writes
    actual, expected = both(ONEDNN, request, {read: source, write: target}, {read: draw(source.shape)}, by=by)
    np.testing.assert_array_equal(actual[write], expected[write])


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(
    ("shape", "axis", "start", "count"),
    [
        ((2, 20, 6, 5), 1, 3, 8),
        ((2, 20, 6, 5), 2, 0, 3),
        ((2, 20, 6, 5), 3, 1, 2),
        ((7, 33), 0, 2, 2),
        ((4, 3, 9), 2, 0, 5),
    ],
)
def test_slices(shape: Shape, axis: int, start: int, count: int, step: int) -> None:
    part = tuple(count if dimension == axis else size for dimension, size in enumerate(shape))
    x, y, by = tensor(shape), tensor(part), ":" if step == 1 else "numba"
    moved(SliceForward(x, y, axis, start, step), x, y, by)
    moved(SliceBackward(y, x, axis, start, step), y, x, by)


@pytest.mark.parametrize("value", [0.0, -2.5])
@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((2, 20, 6, 5), (0, 0, 1, 2), (0, 0, 3, 0)),
        ((2, 20, 6, 5), (0, 3, 0, 0), (0, 0, 0, 0)),
        ((7, 33), (1, 0), (0, 2)),
        ((4, 3, 9), (0, 0, 0), (0, 0, 0)),
    ],
)
def test_padding(shape: Shape, before: Shape, after: Shape, value: float) -> None:
    whole = tuple(b + size + a for b, size, a in zip(before, shape, after, strict=True))
    x, y = tensor(shape), tensor(whole)
    moved(PadForward(x, y, before, value), x, y, ":")
    moved(PadBackward(y, x, before), y, x, ":")
