"""Arrays of the host and of a device are read and assigned in the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import State
from crossbow.runtime.memory import assign, new_state, on_host


class DeviceArray:
    """An array elsewhere, with the methods of CuPy's."""

    def __init__(self, values: Any) -> None:
        self._values = np.array(values)
        self.shape, self.dtype = self._values.shape, self._values.dtype

    def get(self) -> np.ndarray:
        return self._values.copy()

    def set(self, values: np.ndarray) -> None:
        assert values.shape == self.shape
        assert values.dtype == self.dtype
        assert values.flags.c_contiguous
        self._values[...] = values


def test_an_array_of_the_host_is_itself() -> None:
    array = np.arange(3)
    assert on_host(array) is array
    np.testing.assert_array_equal(on_host(DeviceArray([1.0, 2.0])), [1.0, 2.0])


@pytest.mark.parametrize("kind", [np.array, DeviceArray])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, [[0, 0], [0, 0]]),
        (2.5, [[2.5, 2.5], [2.5, 2.5]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([[1.0, 2.0], [3.0, 4.0]]).T, [[1, 3], [2, 4]]),
        (DeviceArray([[5.0, 6.0], [7.0, 8.0]]), [[5, 6], [7, 8]]),
    ],
    ids=["zero", "a number", "integers", "not contiguous", "of a device"],
)
def test_assignment(kind: Any, value: Any, expected: Any) -> None:
    target = kind(np.full((2, 2), 9, np.float32))
    assign(target, value)
    np.testing.assert_array_equal(on_host(target), np.array(expected, np.float32), strict=True)


def test_a_new_state_is_empty() -> None:
    state = new_state()
    assert (state.shape, state.dtype) == ((State.SIZE,), np.int64)
    assert not state.any()
