"""Rows of a table selected by indices, and the gradient of the table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import State
from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import EmbeddingBackward, EmbeddingForward
from crossbow.types import Array, ExampleError


@computes(EmbeddingForward)
def forward(*, input0: Floats, state: Array, weights: Floats, output: Floats) -> None:
    """y = weights[x]."""
    rows = chosen_rows(input0=input0, state=state, rows=len(weights))
    output[: len(rows)] = weights[rows]
    output[len(rows) :] = 0


@computes(EmbeddingBackward)
def backward(*, input0: Floats, state: Array, output_gradient: Floats, weights_gradient: Floats) -> None:
    """dweights[row] = Σ dy where the index is the row."""
    rows = chosen_rows(input0=input0, state=state, rows=len(weights_gradient))
    weights_gradient[...] = 0
    np.add.at(weights_gradient, rows, output_gradient[: len(rows)])


def chosen_rows(*, input0: Floats, state: Array, rows: int) -> NDArray[np.intp]:
    """The indices of the real examples. Raises ExampleError if one is not a row."""
    return as_rows(input0[: int(state[State.EXAMPLES])], rows, "index")


def as_rows(numbers: Floats, rows: int, what: str) -> NDArray[np.intp]:
    """Numbers (examples, …) as indices of rows. Raises ExampleError, which names `what`, if one is not a row."""
    bad = ~((numbers >= 0) & (numbers < rows) & (numbers == np.floor(numbers)))
    if bad.any():
        example = int(np.nonzero(bad)[0][0])
        raise ExampleError(
            f"expected a whole number from 0 to {rows - 1} for every {what}. "
            f"Received: {numbers[bad][0]:.9g}, in example {example} of the batch",
            example,
        )
    return numbers.astype(np.intp)
