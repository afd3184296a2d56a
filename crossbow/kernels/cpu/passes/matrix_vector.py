"""Products of matrices and vectors, row by row. The library adds up most of a row one product after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.compiled import float32_at, in_any_order, int64_at, native
from crossbow.kernels.cpu.passes.rows import share
from crossbow.kernels.cpu.passes.team import TEAM_SLOTS, team_size, team_thread, threads_for
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.types import Shape, address

BLOCK = 2**11
"""Products that are added up in float32, in as many sums as vectors have numbers; the sums of blocks in float64."""


def add_row_products(
    steps: Steps, matrices: tuple[Shape, Place], vectors: tuple[Shape, Place], stack: Shape, target: Place
) -> None:
    """Append: target[s, r] = Σ_k matrices[s, r, k] · vectors[s, k], everything in row-major order.

    matrices, vectors: shapes (…, rows, length) and (…, length), whose first axes are broadcast to `stack`.
    """
    (shape, place), (vector, beside) = matrices, vectors
    (rows, length), count = shape[-2:], math.prod(stack)
    starts = [_numbers(shape[:-2], stack) * rows * length, _numbers(vector[:-1], stack) * length]
    table = np.stack(starts, axis=1)
    slots = (count, rows, length, address(table))
    threads = threads_for(4 * count * rows * length)
    steps.add_team_pass("rows", row_products, threads, (place, beside, target), *slots, references=(table,))


def _numbers(own: Shape, stack: Shape) -> NDArray[np.int64]:
    """For every place in a stack, the number of the matrix that is used there."""
    numbers = np.arange(math.prod(own), dtype=np.int64).reshape(own)
    return np.broadcast_to(numbers, stack).reshape(-1)


@in_any_order
def _block(a: int, b: int, count: int) -> Any:
    """Σ a · b, in float32."""
    left, right, total = float32_at(a), float32_at(b), np.float32(0)
    for index in range(count):
        total += left[index] * right[index]
    return total


@native
def row_products(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Addresses: matrices, vectors, products. Then how many matrices, their rows, the length of a row, and the table
    of their starts: of matrix and vector."""
    b = int64_at(np.int64(arguments) + 8 * TEAM_SLOTS)
    thread, threads, products, table = team_thread(arguments), team_size(arguments), float32_at(b[2]), int64_at(b[6])
    rows, length = b[4], b[5]
    for number in range(share(b[3] * rows, thread, threads), share(b[3] * rows, thread + 1, threads)):
        matrix, row = number // rows, number % rows
        left, right = b[0] + 4 * (table[2 * matrix] + row * length), b[1] + 4 * table[2 * matrix + 1]
        total = 0.0
        for first in range(0, length, BLOCK):
            total += _block(left + 4 * first, right + 4 * first, min(BLOCK, length - first))
        products[number] = np.float32(total)
    return 0
