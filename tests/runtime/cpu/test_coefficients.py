"""Coefficients that kernels read are copied once for each array."""

from __future__ import annotations

import numpy as np

from crossbow.runtime.cpu.coefficients import HostNumbers


def test_numbers_are_copied_to_where_kernels_read_them() -> None:
    numbers = HostNumbers(3)
    place = numbers.array
    assert place.dtype == np.float64
    first, second = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    for given in (first, second, first):
        numbers.set(given)
        np.testing.assert_array_equal(place, given)
    assert numbers.array is place  # which kernels are bound to


def test_an_array_that_is_set_already_is_not_copied_again() -> None:
    numbers, given = HostNumbers(2), np.array([1.0, 2.0])
    numbers.set(given)
    numbers.array[:] = 9
    numbers.set(given)
    assert numbers.array.tolist() == [9, 9]
    numbers.set(given.copy())
    assert numbers.array.tolist() == [1, 2]
