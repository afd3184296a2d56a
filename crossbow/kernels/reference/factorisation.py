"""Loss of a matrix factorisation, its gradients, and its predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import State
from crossbow.kernels.reference.embedding import as_rows
from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import FactorisationBackward, FactorisationForward, FactorisationPrediction
from crossbow.types import Array

Indices = NDArray[np.intp]


@computes(FactorisationForward)
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
    rows, columns = named_rows(input0=input0, state=state, users=users, items=items)
    u, v = users[rows], items[columns]
    error = labels[: len(rows)] - (u * v).sum(axis=1)
    output[0] = np.square(error).sum() + regularisation * (np.square(u).sum() + np.square(v).sum())


@computes(FactorisationBackward)
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
    rows, columns = named_rows(input0=input0, state=state, users=users, items=items)
    u, v = users[rows], items[columns]
    error = (labels[: len(rows)] - (u * v).sum(axis=1))[:, np.newaxis]
    users_gradient[...] = 0
    items_gradient[...] = 0
    np.add.at(users_gradient, rows, 2 * (regularisation * u - error * v))
    np.add.at(items_gradient, columns, 2 * (regularisation * v - error * u))


@computes(FactorisationPrediction)
def prediction(*, input0: Floats, state: Array, users: Floats, items: Floats, output: Floats) -> None:
    """u · v."""
    rows, columns = named_rows(input0=input0, state=state, users=users, items=items)
    output[: len(rows)] = (users[rows] * items[columns]).sum(axis=1)
    output[len(rows) :] = 0


def named_rows(*, input0: Floats, state: Array, users: Floats, items: Floats) -> tuple[Indices, Indices]:
    """Indices of users and items of the real examples. Raises ExampleError if there is no such row."""
    real = input0[: int(state[State.EXAMPLES])]
    return as_rows(real[:, 0], len(users), "user"), as_rows(real[:, 1], len(items), "item")
