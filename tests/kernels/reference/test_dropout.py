"""Dropout: kept elements are scaled, and the gradient draws the same mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.random import random_words
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import DropoutBackward, DropoutForward
from tests.kernels.reference.running import DTYPES, channels_last, draw, nan, run, state, tensor

SHAPE = (2, 3, 4, 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ratio", [0.0, 0.75])
def test_a_word_below_the_ratio_drops_its_element(ratio: float, dtype: Any) -> None:
    """In logical order, in memory of any order."""
    library, t, where = Reference(dtype), tensor(SHAPE, dtype), state(TASK=2**32 + 7)
    kept = random_words(120, 5, 9, 2**32 + 7).reshape(SHAPE) >= ratio * 2**32
    x = draw(*SHAPE, dtype=dtype)
    expected = np.where(kept, x / (1 - ratio), 0)
    for order in (np.array, channels_last):
        y, dx = order(nan(SHAPE, dtype)), order(nan(SHAPE, dtype))
        values = order(x)
        run(library.prepare(DropoutForward(t, t, ratio, 5, 9)), input0=values, state=where, output=y)
        run(
            library.prepare(DropoutBackward(t, t, ratio, 5, 9)),
            output_gradient=order(x),
            state=where,
            input_gradient=dx,
        )
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(dx, expected)
