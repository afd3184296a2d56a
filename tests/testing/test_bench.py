"""Kernels that do not keep their contract are found."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.testing import check_gradients, run_operator
from tests.testing.user_operators import (
    Identity,
    Shift,
    X,
)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("forward forgets", r"every element of 'output',.*12 of 12 elements unwritten"),
        ("forward forgets one", r"every element of 'output',.*4 of 12 elements unwritten"),
        ("forward adds", r"every element of 'output',.*12 of 12"),
        ("forward changes its input", "changed input0"),
        ("forward runs over", "changed memory next to output"),
        ("forward asks for too much", "kernel 'identity forward' to use roles among .*Received: biases"),
        ("backward forgets", "every element of 'input_gradient0',"),
        ("backward adds", "every element of 'input_gradient0',"),
        ("backward changes its input", "changed output_gradient"),
        ("backward runs over", "changed memory next to input_gradient0"),
    ],
)
def test_broken_kernels_are_found(fault: str, message: str) -> None:
    run_operator(Identity(), [X])
    with pytest.raises(AssertionError, match=f"(?s)Identity: expected .*{message}"):
        run_operator(Identity(fault=fault), [X])


def test_a_storage_of_the_kernels_choice() -> None:
    run = run_operator(Shift(), [np.zeros((2, 3))], variables={"s": [1, 2, 3]})
    np.testing.assert_array_equal(run.outputs[0], [[1, 2, 3]] * 2)
    np.testing.assert_array_equal(run.variable_gradients["s"], [2, 2, 2])
    assert check_gradients(Shift(), [(2, 3)]) < 1e-8
    with pytest.raises(AssertionError, match="zeros in the padding of 's_gradient', stored as padded to 4"):
        run_operator(Shift(padding=1.0), [np.zeros((2, 3))])


def test_in_place_gives_kernels_one_buffer_for_both() -> None:
    """A kernel that adds to its output doubles its input there."""
    run = run_operator(Identity(), [X], in_place=True)
    np.testing.assert_array_equal(run.outputs[0], X)
    doubled = run_operator(Identity(fault="forward adds"), [X], in_place=True)
    np.testing.assert_array_equal(doubled.outputs[0], 2 * X)
