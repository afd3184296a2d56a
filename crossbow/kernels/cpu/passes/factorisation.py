"""The loss of a matrix factorisation, its gradients, and its predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import (
    EXAMPLES,
    NativeFunction,
    float32_at,
    in_any_order,
    inlined,
    int64_at,
    native_pass,
    prepared_pass,
)
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Buffers, PreparedKernel
from crossbow.kernels.native import BAD_INDEX
from crossbow.kernels.reference.factorisation import named_rows
from crossbow.kernels.requests import FactorisationBackward, FactorisationForward, FactorisationPrediction


@PASSES.kernel(FactorisationForward, lambda request: request.labels.dtype == np.float32)
def forward(request: FactorisationForward) -> PreparedKernel:
    return _of_labels(request, squared_errors, loss="output")


@PASSES.kernel(FactorisationBackward, lambda request: request.labels.dtype == np.float32)
def backward(request: FactorisationBackward) -> PreparedKernel:
    written = {role: role for role in request.writes}
    return _of_labels(request, squared_errors_gradient, **written)


@PASSES.kernel(FactorisationPrediction)
def prediction(request: FactorisationPrediction) -> PreparedKernel:
    return _prepared(request, products, y="output", batch=request.x.shape[0])


def _of_labels(
    request: FactorisationForward | FactorisationBackward, function: NativeFunction, **written: Any
) -> PreparedKernel:
    return _prepared(request, function, labels="labels", decay=float(request.regularisation), **written)


def _prepared(
    request: FactorisationForward | FactorisationBackward | FactorisationPrediction,
    function: NativeFunction,
    **more: Any,
) -> PreparedKernel:
    (user_rows, latents), item_rows = request.users.shape, request.items.shape[0]
    places: dict[str, Any] = {"x": "input0", "state": "state", "users": "users", "items": "items"}
    sizes: dict[str, Any] = {"user_rows": user_rows, "item_rows": item_rows, "latents": latents}
    return prepared_pass(request, function, explain=_explain, **places, **sizes, **more)


def _explain(buffers: Buffers) -> None:
    """Raise the exception of the reference kernel for a number that is not a row."""
    named_rows(**{role: buffers[role] for role in ("input0", "state", "users", "items")})


@inlined
def row_of(number: Any, rows: int) -> Any:
    """The row of a floating-point number, or −1 if it is not a row."""
    if not (number >= 0 and number < rows):  # true of NaN
        return -1
    row = np.int64(number)
    return row if np.float32(row) == number else -1


@in_any_order
def _product(users: Any, u: int, items: Any, v: int, latents: int) -> Any:
    """u · v for the rows that start at these indices."""
    product = np.float32(0)
    for k in range(latents):
        product += users[u + k] * items[v + k]
    return product


SHARED: dict[str, Any] = {
    **dict.fromkeys(("x", "state", "users", "items"), Address),
    **dict.fromkeys(("user_rows", "item_rows", "latents"), int),
}


@native_pass(Arguments(**SHARED, labels=Address, decay=float, loss=Address))
def squared_errors(block: Any) -> int:
    x, labels, examples = float32_at(block.x), float32_at(block.labels), int64_at(block.state)[EXAMPLES]
    users, items, latents = float32_at(block.users), float32_at(block.items), block.latents
    total, squares = 0.0, 0.0
    for n in range(examples):
        row, column = row_of(x[2 * n], block.user_rows), row_of(x[2 * n + 1], block.item_rows)
        if row < 0 or column < 0:
            return BAD_INDEX
        u, v = row * latents, column * latents
        error = np.float64(labels[n] - _product(users, u, items, v, latents))
        total += error * error
        for k in range(latents):
            squares += np.float64(users[u + k]) ** 2 + np.float64(items[v + k]) ** 2
    float32_at(block.loss)[0] = np.float32(total + block.decay * squares)
    return 0


@native_pass(Arguments(**SHARED, labels=Address, decay=float, users_gradient=Address, items_gradient=Address))
def squared_errors_gradient(block: Any) -> int:
    x, labels, examples = float32_at(block.x), float32_at(block.labels), int64_at(block.state)[EXAMPLES]
    users, items, latents = float32_at(block.users), float32_at(block.items), block.latents
    users_gradient, items_gradient = float32_at(block.users_gradient), float32_at(block.items_gradient)
    decay = np.float32(block.decay)
    for index in range(block.user_rows * latents):
        users_gradient[index] = np.float32(0)
    for index in range(block.item_rows * latents):
        items_gradient[index] = np.float32(0)
    for n in range(examples):
        row, column = row_of(x[2 * n], block.user_rows), row_of(x[2 * n + 1], block.item_rows)
        if row < 0 or column < 0:
            return BAD_INDEX
        u, v = row * latents, column * latents
        error = labels[n] - _product(users, u, items, v, latents)
        for k in range(latents):
            users_gradient[u + k] += np.float32(2) * (decay * users[u + k] - error * items[v + k])
            items_gradient[v + k] += np.float32(2) * (decay * items[v + k] - error * users[u + k])
    return 0


@native_pass(Arguments(**SHARED, y=Address, batch=int))
def products(block: Any) -> int:
    x, y, examples = float32_at(block.x), float32_at(block.y), int64_at(block.state)[EXAMPLES]
    users, items, latents = float32_at(block.users), float32_at(block.items), block.latents
    for n in range(examples):
        row, column = row_of(x[2 * n], block.user_rows), row_of(x[2 * n + 1], block.item_rows)
        if row < 0 or column < 0:
            return BAD_INDEX
        y[n] = _product(users, row * latents, items, column * latents, latents)
    for n in range(examples, block.batch):
        y[n] = np.float32(0)
    return 0
