"""A matrix factorisation's loss, gradients and predictions by hand, and invalid indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import FactorisationBackward, FactorisationForward, FactorisationPrediction
from crossbow.types import DataError
from tests.kernels.reference.running import Numbers, nan, run, state, tensor

USERS = np.array([[1.0, 2], [0, 1], [5, 5]])
ITEMS = np.array([[3.0, 1], [1, -1]])
VARIABLES = Variable((3, 2), np.dtype(np.float64)), Variable((2, 2), np.dtype(np.float64))
X, LABELS = np.array([[0.0, 0], [1, 1], [0, 1], [99, 99]]), np.array([4.0, 2, 0, 99])


def factorise(x: Numbers, examples: int) -> dict[str, Numbers]:
    """Everything that the two kernels write, with λ = 1/2."""
    buffers: dict[str, Any] = {"input0": x, "labels": LABELS, "state": state(EXAMPLES=examples)}
    buffers |= {"users": USERS, "items": ITEMS, "output": nan((1,))}
    buffers |= {"users_gradient": nan((3, 2)), "items_gradient": nan((2, 2))}
    for request in (FactorisationForward, FactorisationBackward):
        run(Reference(np.float64).prepare(request(tensor((4, 2)), tensor((4,)), *VARIABLES, 0.5)), **buffers)
    return buffers


def test_by_hand() -> None:
    """u·v = 5, −1, −1 and errors −1, 3, 1; a user of two examples gets the sum of two gradients."""
    done = factorise(X, 3)
    assert done["output"][0] == (1 + 9 + 1) + 0.5 * (5 + 10 + 1 + 2 + 5 + 2)
    first, third = 2 * (0.5 * USERS[0] + ITEMS[0]), 2 * (0.5 * USERS[0] - ITEMS[1])
    second = 2 * (0.5 * USERS[1] - 3 * ITEMS[1])
    np.testing.assert_allclose(done["users_gradient"], [first + third, second, [0, 0]])
    first, second, third = (
        2 * (0.5 * v - e * u) for v, e, u in zip(ITEMS[[0, 1, 1]], (-1, 3, 1), USERS[[0, 1, 0]], strict=True)
    )
    np.testing.assert_allclose(done["items_gradient"], [first, second + third])


def predict(x: Numbers, examples: int) -> Numbers:
    kernel = Reference(np.float64).prepare(FactorisationPrediction(tensor((4, 2)), *VARIABLES, tensor((4,))))
    output = nan((4,))
    run(kernel, input0=x, state=state(EXAMPLES=examples), users=USERS, items=ITEMS, output=output)
    return output


def test_predictions_by_hand() -> None:
    assert predict(X, 3).tolist() == [5, -1, -1, 0]  # the last one is padding
    assert predict(X, 0).tolist() == [0, 0, 0, 0]


def test_without_an_example() -> None:
    done = factorise(X, 0)
    assert [float(np.abs(done[role]).sum()) for role in ("output", "users_gradient", "items_gradient")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((3, 0), "from 0 to 2 for every user. Received: 3, in example 1 "),
        ((0, 2), "from 0 to 1 for every item. Received: 2, in example 1 "),
        ((-1, 0), "user. Received: -1,"),
        ((0.5, 0), "user. Received: 0.5,"),
        ((0, np.nan), "item. Received: nan,"),
    ],
)
def test_an_invalid_index_is_named(row: tuple[float, float], message: str) -> None:
    x = X.copy()
    x[1] = row
    for compute in (factorise, predict):
        with pytest.raises(DataError) as caught:
            compute(x, 3)
        assert message in str(caught.value)
    factorise(x, 1)  # padding is ignored
