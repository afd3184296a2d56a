"""oneDNN's matrix product on parts of matrices in memory."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.native import NativeError
from crossbow.types import address
from tests.kernels.cpu.running import Numbers, close, draw

from crossbow.kernels.cpu.onednn.matrix import Matrix, product_call  # isort: skip - after the module that skips


def part(whole: Numbers, rows: int, columns: int, transposed: bool) -> tuple[Matrix, Numbers]:
    """The matrix of this size that begins at (1, 2) of an array, or of which that is the transpose; and its values."""
    height, width = (columns, rows) if transposed else (rows, columns)
    values = whole[1 : 1 + height, 2 : 2 + width]
    return Matrix(address(values), whole.shape[1], transposed), (values.T if transposed else values).astype(np.float64)


@pytest.mark.parametrize("turned_a", [False, True])
@pytest.mark.parametrize("turned_b", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 3, 20), (16, 33, 7), (2, 40, 1)])
def test_parts_are_multiplied_and_the_rest_is_left_alone(
    m: int, n: int, k: int, turned_a: bool, turned_b: bool
) -> None:
    wholes = draw((50, 60), 1), draw((50, 60), 2)
    (a, left), (b, right) = part(wholes[0], m, k, turned_a), part(wholes[1], k, n, turned_b)
    target = np.full((m + 2, n + 5), np.nan, np.float32)
    c = Matrix(address(target[1:, 2:]), n + 5)
    product_call("product", (m, n, k), a, b, c, (*wholes, target))()
    close(target[1:-1, 2 : 2 + n], left @ right, k)
    target[1:-1, 2 : 2 + n] = np.nan
    assert np.isnan(target).all()


def test_its_status_is_the_calls() -> None:
    """Rows of a lie closer together than they are long."""
    values = np.zeros((4, 4), np.float32)
    a, b = Matrix(address(values), 1), Matrix(address(values), 4)
    with pytest.raises(NativeError, match=r"the native call mine failed: it returned status 2"):
        product_call("mine", (4, 4, 4), a, b, b, (values,))()
