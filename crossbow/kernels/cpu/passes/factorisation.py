"""The loss of a matrix factorisation, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.compiled import (
    EXAMPLES,
    float32_at,
    float64_at,
    in_any_order,
    inlined,
    int64_at,
    native,
    prepared_pass,
)
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Buffers, PreparedKernel
from crossbow.kernels.native import BAD_INDEX
from crossbow.kernels.reference.factorisation import named_rows
from crossbow.kernels.requests import FactorisationBackward, FactorisationForward


@PASSES.kernel(FactorisationForward, lambda request: request.labels.dtype == np.float32)
def forward(request: FactorisationForward) -> PreparedKernel:
    return prepared_pass(request, squared_errors, *_numbers(request), explain=_explain)


@PASSES.kernel(FactorisationBackward, lambda request: request.labels.dtype == np.float32)
def backward(request: FactorisationBackward) -> PreparedKernel:
    return prepared_pass(request, squared_errors_gradient, *_numbers(request), explain=_explain)


def _numbers(request: FactorisationForward | FactorisationBackward) -> tuple[int | float, ...]:
    """Rows of users, rows of items, latents, λ."""
    users, items = request.users.shape, request.items.shape
    return users[0], items[0], users[1], float(request.regularisation)


def _explain(buffers: Buffers) -> None:
    """Raise what the reference kernel raises where a number is no row."""
    named_rows(**{role: buffers[role] for role in ("input0", "state", "users", "items")})


@inlined
def _row(number: Any, rows: int) -> Any:
    """The row that a floating-point number names, or −1."""
    if not (number >= 0 and number < rows):  # so that what is not a number is none
        return -1
    row = np.int64(number)
    return row if np.float32(row) == number else -1


@in_any_order
def _error(rating: Any, users: Any, u: int, items: Any, v: int, latents: int) -> Any:
    """rating − u · v, of the rows that start at these places."""
    product = np.float32(0)
    for k in range(latents):
        product += users[u + k] * items[v + k]
    return rating - product


@native
def squared_errors(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, labels, state, users, items, loss, rows of users, rows of items, latents, λ."""
    block = int64_at(arguments)
    x, labels, examples = float32_at(block[0]), float32_at(block[1]), int64_at(block[2])[EXAMPLES]
    users, items, latents, decay = float32_at(block[3]), float32_at(block[4]), block[8], float64_at(arguments)[9]
    total, squares = 0.0, 0.0
    for n in range(examples):
        row, column = _row(x[2 * n], block[6]), _row(x[2 * n + 1], block[7])
        if row < 0 or column < 0:
            return BAD_INDEX
        u, v = row * latents, column * latents
        error = np.float64(_error(labels[n], users, u, items, v, latents))
        total += error * error
        for k in range(latents):
            squares += np.float64(users[u + k]) ** 2 + np.float64(items[v + k]) ** 2
    float32_at(block[5])[0] = np.float32(total + decay * squares)
    return 0


@native
def squared_errors_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, labels, state, users, items, their gradients, rows of users, rows of items, latents, λ."""
    block = int64_at(arguments)
    x, labels, examples = float32_at(block[0]), float32_at(block[1]), int64_at(block[2])[EXAMPLES]
    users, items, latents = float32_at(block[3]), float32_at(block[4]), block[9]
    users_gradient, items_gradient = float32_at(block[5]), float32_at(block[6])
    decay = np.float32(float64_at(arguments)[10])
    for index in range(block[7] * latents):
        users_gradient[index] = np.float32(0)
    for index in range(block[8] * latents):
        items_gradient[index] = np.float32(0)
    for n in range(examples):
        row, column = _row(x[2 * n], block[7]), _row(x[2 * n + 1], block[8])
        if row < 0 or column < 0:
            return BAD_INDEX
        u, v = row * latents, column * latents
        error = _error(labels[n], users, u, items, v, latents)
        for k in range(latents):
            users_gradient[u + k] += np.float32(2) * (decay * users[u + k] - error * items[v + k])
            items_gradient[v + k] += np.float32(2) * (decay * items[v + k] - error * users[u + k])
    return 0
