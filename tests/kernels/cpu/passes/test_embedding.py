"""The compiled embedding against the reference, with repeated rows, padding, and invalid indices."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import EmbeddingBackward, EmbeddingForward
from crossbow.types import DataError, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, Numbers, both, close, draw, execute, state

X = Tensor((3, 4), FLOAT32)


def numbers(columns: int, examples: int) -> dict[str, Numbers]:
    rows = np.array([[0, 3, 3, 1], [3, 3, 0, 0], [99, -1, 0.5, 0]], np.float32)  # the last one is padding
    values = {"input0": rows, "state": state(EXAMPLES=examples), "weights": draw((5, columns), 1)}
    return {**values, "output_gradient": draw((3, 4, columns), 2)}


@pytest.mark.parametrize("columns", [1, 37])
@pytest.mark.parametrize("examples", [2, 1, 0])
def test_it_agrees_with_the_reference(columns: int, examples: int) -> None:
    table, y = Tensor((5, columns), FLOAT32), Tensor((3, 4, columns), FLOAT32)
    weights = Variable(table.shape, FLOAT32)
    tensors = {"input0": X, "weights": table, "weights_gradient": table, "output": y, "output_gradient": y}
    values = numbers(columns, examples)
    actual, expected = both(COMPILED, EmbeddingForward(X, weights, y), tensors, values, by="numba")
    np.testing.assert_array_equal(actual["output"], expected["output"])
    actual, expected = both(COMPILED, EmbeddingBackward(X, weights, y), tensors, values, by="numba")
    close(actual["weights_gradient"], expected["weights_gradient"], 6)


@pytest.mark.parametrize("number", [5, -1, 0.5, np.nan, np.inf])
def test_an_invalid_index_is_named(number: float) -> None:
    weights, y = Variable((5, 2), FLOAT32), Tensor((3, 4, 2), FLOAT32)
    values = numbers(2, 2)
    values["input0"][1, 2] = number
    buffers = {**values, "output": draw(y.shape), "weights_gradient": draw((5, 2))}
    for request in (EmbeddingForward(X, weights, y), EmbeddingBackward(X, weights, y)):
        with pytest.raises(DataError, match=f"for every index. Received: {number:g}, in example 1 of the batch"):
            execute(COMPILED.prepare(request), buffers)
