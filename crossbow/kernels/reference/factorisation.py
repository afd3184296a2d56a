"""The loss of a matrix factorisation, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import State
from crossbow.kernels.reference.prepare import Floats
from crossbow.types import Array

Indices = NDArray[np.intp]


def forward(
    *,
    input0: Floats,
    labels: NDArray[Any],
    state: Array,
    users: Floats,
    items: Floats,
    output: Floats,
    regularisation: float,
) -> None:
    """Σ (r − u · v)² + λ (|u|² + |v|²)."""
    rows, columns = _indices(input0, state, users, items)
    u, v = users[rows], items[columns]
    error = labels[: len(rows)] - (u * v).sum(axis=1)
    output[0] = np.square(error).sum() + regularisation * (np.square(u).sum() + np.square(v).sum())


def backward(
    *,
    input0: Floats,
    labels: NDArray[Any],
    state: Array,
    users: Floats,
    items: Floats,
    users_gradient: Floats,
    items_gradient: Floats,
    regularisation: float,
) -> None:
    """du = Σ 2 (λ u − e v), dv = Σ 2 (λ v − e u), each in its row."""
    rows, columns = _indices(input0, state, users, items)
    u, v = users[rows], items[columns]
    error = (labels[: len(rows)] - (u * v).sum(axis=1))[:, np.newaxis]
    users_gradient[...] = 0
    items_gradient[...] = 0
    np.add.at(users_gradient, rows, 2 * (regularisation * u - error * v))
    np.add.at(items_gradient, columns, 2 * (regularisation * v - error * u))


def _indices(x: Floats, state: Array, users: Floats, items: Floats) -> tuple[Indices, Indices]:
    """The rows of users and items that the real examples name."""
    real = x[: int(state[State.EXAMPLES])]
    found = []
    for column, (name, table) in enumerate((("user", users), ("item", items))):
        numbers = real[:, column]
        good = (numbers >= 0) & (numbers < len(table)) & (numbers == np.floor(numbers))
        if not good.all():
            raise ValueError(
                f"expected a whole number from 0 to {len(table) - 1} for every {name}. Received: {numbers[~good][0]:g}"
            )
        found.append(numbers.astype(np.intp))
    return found[0], found[1]
