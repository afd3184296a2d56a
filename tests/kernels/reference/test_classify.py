"""The index of the largest value."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import LargestIndex
from crossbow.types import Shape
from tests.kernels.reference.running import nan, run, tensor

X = np.array([[1.0, 3, 3], [np.nan, 5, np.nan], [-np.inf, -np.inf, -np.inf], [-1, -2, -3]])


@pytest.mark.parametrize(("ties", "expected"), [("first", [1, 0, 0, 0]), ("last", [2, 2, 2, 0])])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_by_hand(shape: Shape, ties: str, expected: list[int]) -> None:
    """NaN is larger than every number."""
    y = nan(shape)
    run(Reference(np.float64).prepare(LargestIndex(tensor(X.shape), tensor(shape), 1, ties)), input0=X, output=y)
    assert y.reshape(-1).tolist() == expected


def test_along_another_axis() -> None:
    x, y = np.array([[[1.0, 2], [3, 0]], [[0, 0], [0, 1]]]), nan((2, 2))
    run(Reference(np.float64).prepare(LargestIndex(tensor(x.shape), tensor(y.shape), 1)), input0=x, output=y)
    assert y.tolist() == [[1, 0], [0, 1]]


def test_of_no_example() -> None:
    x, y = np.zeros((0, 3)), nan((0,))
    run(Reference(np.float64).prepare(LargestIndex(tensor(x.shape), tensor(y.shape), 1)), input0=x, output=y)
