"""The compiled matrix factorisation against the reference, with repeated rows, padding, and invalid indices."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import FactorisationBackward, FactorisationForward, FactorisationPrediction
from crossbow.types import DataError, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, Numbers, both, close, draw, execute, memory, state

N = 6
X, LABELS, ONE = Tensor((N, 2), FLOAT32), Tensor((N,), FLOAT32), Tensor((1,), FLOAT32)


def numbers(latents: int, examples: int) -> dict[str, Numbers]:
    rows = np.array([[0, 3], [4, 0], [0, 3], [2, 2], [4, 3], [99, -1]], np.float32)  # the last one is padding
    values = {"input0": rows, "labels": draw((N,), 1), "state": state(EXAMPLES=examples)}
    return {**values, "users": draw((5, latents), 2), "items": draw((4, latents), 3)}


@pytest.mark.parametrize("latents", [1, 3, 37])
@pytest.mark.parametrize("examples", [5, 2, 0])
def test_it_agrees_with_the_reference(latents: int, examples: int) -> None:
    users, items = Variable((5, latents), FLOAT32), Variable((4, latents), FLOAT32)
    tables = {"users": Tensor(users.shape, FLOAT32), "items": Tensor(items.shape, FLOAT32)}
    tensors = {"input0": X, "labels": LABELS, "output": ONE, **tables}
    tensors |= {f"{name}_gradient": table for name, table in tables.items()}
    values = numbers(latents, examples)
    actual, expected = both(COMPILED, FactorisationForward(X, LABELS, users, items, 0.3), tensors, values, by="numba")
    close(actual["output"], expected["output"])
    request = FactorisationBackward(X, LABELS, users, items, 0.3)
    actual, expected = both(COMPILED, request, tensors, values, by="numba")
    for role in ("users_gradient", "items_gradient"):
        close(actual[role], expected[role], latents)
    request = FactorisationPrediction(X, users, items, LABELS)
    actual, expected = both(COMPILED, request, {**tensors, "output": LABELS}, values, by="numba")
    close(actual["output"], expected["output"], latents)


@pytest.mark.parametrize(
    ("row", "column", "what"),
    [(2, 4, "3 for every item. Received: 4"), (5, 0, "4 for every user. Received: 5"), (-1, 0, "-1"), (0.5, 0, "0.5"),
     (np.nan, 0, "nan"), (0, np.inf, "inf")],
)  # fmt: skip
def test_an_invalid_index_is_named(row: float, column: float, what: str) -> None:
    users, items = Variable((5, 3), FLOAT32), Variable((4, 3), FLOAT32)
    values = numbers(3, 5)
    values["input0"][3] = row, column
    buffers = {**values, "output": memory(LABELS), "users_gradient": draw((5, 3)), "items_gradient": draw((4, 3))}
    for request in (
        FactorisationForward(X, LABELS, users, items, 0.0),
        FactorisationBackward(X, LABELS, users, items, 0.0),
        FactorisationPrediction(X, users, items, LABELS),
    ):
        with pytest.raises(DataError, match=f"{what}, in example 3 of the batch"):
            execute(COMPILED.prepare(request), buffers)


def test_labels_of_another_type_are_left_to_the_reference() -> None:
    users, items = Variable((5, 3), FLOAT32), Variable((4, 3), FLOAT32)
    labels = Tensor((N,), np.dtype(np.float64))
    assert COMPILED.prepare(FactorisationForward(X, labels, users, items, 0.0)).name.endswith("reference")
