"""Rows of a table, padding, and indices that are not rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import EmbeddingBackward, EmbeddingForward
from crossbow.types import DataError
from tests.kernels.reference.running import Numbers, nan, run, state, tensor

WEIGHTS = np.array([[1.0, 2], [3, 4], [5, 6]])


def embed(x: Numbers, examples: int) -> dict[str, Any]:
    """All that the two kernels write, with an output gradient of ones."""
    table, y = Variable((3, 2), np.dtype(np.float64)), tensor((*x.shape, 2))
    buffers: dict[str, Any] = {"input0": x, "state": state(EXAMPLES=examples), "weights": WEIGHTS}
    buffers |= {"output": nan(y.shape), "output_gradient": np.ones(y.shape), "weights_gradient": nan((3, 2))}
    for request in (EmbeddingForward, EmbeddingBackward):
        run(Reference(np.float64).prepare(request(tensor(x.shape), table, y)), **buffers)
    return buffers


def test_padding_is_zero_and_has_no_gradient() -> None:
    done = embed(np.array([[2.0, 0], [0, 0], [99, np.nan]]), 2)
    np.testing.assert_array_equal(done["output"], [[[5, 6], [1, 2]], [[1, 2], [1, 2]], [[0, 0], [0, 0]]])
    np.testing.assert_array_equal(done["weights_gradient"], [[3, 3], [0, 0], [1, 1]])


@pytest.mark.parametrize("number", [3.0, -1.0, 0.5, np.nan])
def test_an_invalid_index_is_named(number: float) -> None:
    with pytest.raises(DataError, match=f"0 to 2 for every index. Received: {number:g}, in example 1 of the batch"):
        embed(np.array([[0.0, 1], [2, number]]), 2)
