"""Rows of a table selected by indices, and the gradient of the table."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import EXAMPLES, float32_at, int64_at, native_pass, prepared_pass
from crossbow.kernels.cpu.passes.factorisation import row_of
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Buffers, PreparedKernel
from crossbow.kernels.native import BAD_INDEX
from crossbow.kernels.reference.embedding import chosen_rows
from crossbow.kernels.requests import EmbeddingBackward, EmbeddingForward

ROWS = Arguments(x=Address, state=Address, weights=Address, y=Address, examples=int, length=int, rows=int, columns=int)
"""length: number of indices of an example. rows, columns: sizes of the table, or of its gradient."""


@PASSES.kernel(EmbeddingForward)
def forward(request: EmbeddingForward) -> PreparedKernel:
    places: dict[str, Any] = {"x": "input0", "state": "state", "weights": "weights", "y": "output"}
    return prepared_pass(request, choose_rows, explain=_explain(request), **places, **_sizes(request))


@PASSES.kernel(EmbeddingBackward)
def backward(request: EmbeddingBackward) -> PreparedKernel:
    places: dict[str, Any] = {"x": "input0", "state": "state", "weights": "weights_gradient", "y": "output_gradient"}
    return prepared_pass(request, add_to_rows, explain=_explain(request), **places, **_sizes(request))


def _sizes(request: EmbeddingForward | EmbeddingBackward) -> dict[str, Any]:
    (examples, length), (rows, columns) = request.x.shape, request.weights.shape
    return {"examples": examples, "length": length, "rows": rows, "columns": columns}


def _explain(request: EmbeddingForward | EmbeddingBackward) -> Any:
    """A function that raises the reference's exception for an index that is not a row."""

    def explain(buffers: Buffers) -> None:
        chosen_rows(input0=buffers["input0"], state=buffers["state"], rows=request.weights.shape[0])

    return explain


@native_pass(ROWS)
def choose_rows(block: Any) -> int:
    x, weights, y, columns = float32_at(block.x), float32_at(block.weights), float32_at(block.y), block.columns
    real = int64_at(block.state)[EXAMPLES] * block.length
    for place in range(real):
        row = row_of(x[place], block.rows)
        if row < 0:
            return BAD_INDEX
        for column in range(columns):
            y[place * columns + column] = weights[row * columns + column]
    for index in range(real * columns, block.examples * block.length * columns):
        y[index] = np.float32(0)
    return 0


@native_pass(ROWS)
def add_to_rows(block: Any) -> int:
    x, gradient, dy, columns = float32_at(block.x), float32_at(block.weights), float32_at(block.y), block.columns
    for index in range(block.rows * columns):
        gradient[index] = np.float32(0)
    for place in range(int64_at(block.state)[EXAMPLES] * block.length):
        row = row_of(x[place], block.rows)
        if row < 0:
            return BAD_INDEX
        for column in range(columns):
            gradient[row * columns + column] += dy[place * columns + column]
    return 0
