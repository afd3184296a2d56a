"""Products of matrices and vectors, row by row. (The library adds up most products of a row one after the other.)"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, in_any_order, int64_at, native_pass
from crossbow.kernels.cpu.passes.rows import share
from crossbow.kernels.cpu.passes.team import TEAM, team_size, team_thread, threads_for
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.types import Shape

BLOCK = 2**11
"""Number of products that are added up in float32, in one sum per lane; sums of blocks are added in float64."""


ROW_PRODUCTS = Arguments(
    team=TEAM,
    matrices=Address,
    vectors=Address,
    products=Address,
    count=int,
    rows=int,
    length=int,
    starts=Address,
)
"""starts: for each of `count` matrices, the index of its first element, and that of its vector. rows, length: sizes of
a matrix."""


def add_row_products(
    steps: Steps, matrices: tuple[Shape, Place], vectors: tuple[Shape, Place], stack: Shape, target: Place
) -> None:
    """Append target[s, r] = Σ_k matrices[s, r, k] · vectors[s, k], with all arrays in row-major order.

    matrices, vectors: shapes (…, rows, length) and (…, length), whose first axes are broadcast to `stack`.
    """
    (shape, place), (vector, vector_place) = matrices, vectors
    (rows, length), count = shape[-2:], math.prod(stack)
    starts = [_numbers(shape[:-2], stack) * rows * length, _numbers(vector[:-1], stack) * length]
    table = np.stack(starts, axis=1)
    steps.add_team_pass(
        "rows",
        row_products,
        threads_for(4 * count * rows * length),
        matrices=place,
        vectors=vector_place,
        products=target,
        count=count,
        rows=rows,
        length=length,
        starts=table,
    )


def _numbers(own: Shape, stack: Shape) -> NDArray[np.int64]:
    """The number of the matrix that is used at each place of a stack."""
    numbers = np.arange(math.prod(own), dtype=np.int64).reshape(own)
    return np.broadcast_to(numbers, stack).reshape(-1)


@in_any_order
def _block(a: int, b: int, count: int) -> Any:
    """Σ a · b, in float32."""
    left, right, total = float32_at(a), float32_at(b), np.float32(0)
    for index in range(count):
        total += left[index] * right[index]
    return total


@native_pass(ROW_PRODUCTS)
def row_products(block: Any) -> int:
    thread, threads, rows, length = team_thread(block.team), team_size(block.team), block.rows, block.length
    products, starts = float32_at(block.products), int64_at(block.starts)
    for number in range(share(block.count * rows, thread, threads), share(block.count * rows, thread + 1, threads)):
        matrix, row = number // rows, number % rows
        left = block.matrices + 4 * (starts[2 * matrix] + row * length)
        right = block.vectors + 4 * starts[2 * matrix + 1]
        total = 0.0
        for first in range(0, length, BLOCK):
            total += _block(left + 4 * first, right + 4 * first, min(BLOCK, length - first))
        products[number] = np.float32(total)
    return 0
