"""Concatenation, and its gradient, a slice."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import ConcatBackward, ConcatForward
from tests.kernels.reference.running import channels_last, draw, nan, run, tensor

LIBRARY = Reference(np.float64)


def test_by_hand() -> None:
    xs = [np.array([[1.0], [2]]), np.zeros((2, 0)), np.array([[3.0, 4], [5, 6]])]
    y = nan((2, 3))
    kernel = LIBRARY.prepare(ConcatForward([tensor(x.shape) for x in xs], tensor(y.shape), 1))
    run(kernel, **{f"input{number}": x for number, x in enumerate(xs)}, output=y)
    assert y.tolist() == [[1, 3, 4], [2, 5, 6]]
    dx = nan((2, 2))
    run(LIBRARY.prepare(ConcatBackward(tensor((2, 3)), tensor((2, 2)), 1, 1)), output_gradient=y, input_gradient=dx)
    assert dx.tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize("axis", range(4))
def test_more_than_nine_inputs_come_in_their_order(axis: int) -> None:
    """`input10` after `input9`, not after `input1`; in memory of another order, too."""
    shape = [3, 2, 2, 3]
    shape[axis] = 1
    xs = [channels_last(draw(*shape, seed=seed)) for seed in range(11)]
    y = channels_last(nan((*shape[:axis], 11, *shape[axis + 1 :])))
    kernel = LIBRARY.prepare(ConcatForward([tensor(x.shape) for x in xs], tensor(y.shape), axis))
    run(kernel, **{f"input{number}": x for number, x in enumerate(xs)}, output=y)
    for number, x in enumerate(xs):
        np.testing.assert_array_equal(y.take([number], axis), x)
        dx, request = nan(x.shape), ConcatBackward(tensor(y.shape), tensor(x.shape), axis, number)
        run(LIBRARY.prepare(request), output_gradient=y, input_gradient=dx)
        np.testing.assert_array_equal(dx, x)
