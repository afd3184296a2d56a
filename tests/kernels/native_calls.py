"""Native calls that record their order in a number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from crossbow.kernels.native import NativeCall
from crossbow.types import address

compiled = pytest.importorskip("crossbow.kernels.compiled", reason="numba is not installed")


@compiled.native
def add(target: int, amount: int, status: int, _3: int) -> int:
    """target[0] ← 10 · target[0] + amount; returns `status`."""
    cell = compiled_int64_at(target)
    cell[0] = cell[0] * 10 + np.int64(amount)
    return np.int32(status)


compiled_int64_at = compiled.int64_at


def adding(cell: np.ndarray, amount: int, status: int = 0) -> NativeCall:
    return NativeCall(f"add {amount}", add.address, (address(cell), amount, status), (cell,))


def python_adding(cell: np.ndarray, amount: int) -> Callable[[], None]:
    def call() -> None:
        cell[0] = cell[0] * 10 + amount

    return call
