from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.reference.vector import CHUNK
from crossbow.kernels.requests import ClipCoefficients, LinearCombination, SquaredNorm
from crossbow.solver.update import Assignment
from tests.kernels.reference.running import DTYPES, Numbers, draw, run

# The step of SMA: velocity, weights with the correction, and nothing in between.
SMA = (Assignment("v", ("v", "g", "w")), Assignment("w", ("w", "v", "z")))


def expected(
    assignments: Sequence[Assignment], vectors: dict[str, Numbers], coefficients: Numbers
) -> dict[str, Numbers]:
    """The rule of the interface on whole vectors, rounded after every operation."""
    vectors, left = {name: vector.copy() for name, vector in vectors.items()}, iter(coefficients)
    for assignment in assignments:
        total: Numbers | None = None
        for term in assignment.terms:
            product = vectors[term] * vectors[term].dtype.type(next(left))
            total = product if total is None else total + product
        assert total is not None
        vectors[assignment.target] = total
    return vectors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 7, CHUNK - 1, CHUNK, 2 * CHUNK + 5])
def test_to_the_bit(length: int, dtype: Any) -> None:
    vectors = {name: draw(length, dtype=dtype, seed=ord(name)) for name in "vgwz"}
    coefficients = np.array([0.9, -0.01, -1e-5, 0.7, 1.0, 0.3])
    wanted = expected(SMA, vectors, coefficients)
    run(Reference(dtype).prepare(LinearCombination(SMA, np.dtype(dtype))), **vectors, coefficients=coefficients)
    for name, vector in vectors.items():
        assert vector.dtype == dtype
        np.testing.assert_array_equal(vector, wanted[name])


def test_coefficients_are_read_at_every_call() -> None:
    x, y, coefficients = np.array([1.0, 2.0]), np.zeros(2), np.array([2.0])
    kernel = Reference("float64").prepare(LinearCombination([Assignment("y", ("x",))], np.dtype(np.float64)))
    (call,) = kernel.bind({"x": x, "y": y, "coefficients": coefficients})
    call()
    np.testing.assert_array_equal(y, [2, 4])
    coefficients[0] = 3
    call()
    np.testing.assert_array_equal(y, [3, 6])


def test_a_target_may_be_any_of_its_terms_twice() -> None:
    x, y = np.array([1.0, 2.0]), np.array([10.0, 20.0])
    kernel = Reference("float64").prepare(LinearCombination([Assignment("x", ("y", "x", "x"))], np.dtype(np.float64)))
    run(kernel, x=x, y=y, coefficients=np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(x, [15, 30])


def test_roles() -> None:
    kernel = Reference().prepare(LinearCombination(SMA, np.dtype(np.float32)))
    assert set(kernel.reads) == {"v", "g", "w", "z", "coefficients"}
    assert set(kernel.writes) == {"v", "w"}


def test_vectors_and_coefficients_that_do_not_fit() -> None:
    kernel = Reference("float64").prepare(LinearCombination([Assignment("y", ("x",))], np.dtype(np.float64)))
    with pytest.raises(ValueError, match=r"vectors of one length. Received: \{'x': \(2,\), 'y': \(3,\)\}"):
        kernel.bind({"x": np.zeros(2), "y": np.zeros(3), "coefficients": np.zeros(1)})
    with pytest.raises(
        ValueError, match=r"expected 1 float64 coefficients, one for each term\. Received: float64 of shape \(2,\)"
    ):
        kernel.bind({"x": np.zeros(2), "y": np.zeros(2), "coefficients": np.zeros(2)})


def test_a_call_allocates_nothing_that_grows_with_the_vectors() -> None:
    vectors = {name: draw(40 * CHUNK, dtype=np.float32, seed=ord(name)) for name in "vgwz"}
    kernel = Reference().prepare(LinearCombination(SMA, np.dtype(np.float32)))
    (call,) = kernel.bind({**vectors, "coefficients": np.full(6, 0.1)})
    call()
    tracemalloc.start()
    try:
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4096


# Signs.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, CHUNK, 2 * CHUNK + 5])
def test_the_sign_of_a_vector_is_that_before_the_call(length: int, dtype: Any) -> None:
    """Of −, 0, + it is −1, 0, 1; here the vector itself is the first target, and the sign a term of both."""
    w, v = draw(length, dtype=dtype), draw(length, dtype=dtype, seed=1)
    w[::3] = 0
    assignments = (Assignment("w", ("w", "s")), Assignment("v", ("s", "w", "s")))
    kernel = Reference(dtype).prepare(LinearCombination(assignments, np.dtype(dtype), [("s", "w"), ("unused", "v")]))
    assert (set(kernel.reads), set(kernel.writes)) == ({"w", "coefficients"}, {"w", "v"})
    sign, after = np.sign(w), w.copy()
    after -= dtype(0.25) * sign
    run(kernel, w=w, v=v, coefficients=np.array([1.0, -0.25, 2.0, 1.0, 0.5]))
    np.testing.assert_array_equal(w, after)
    np.testing.assert_array_equal(v, dtype(2) * sign + after + dtype(0.5) * sign)


# Norms.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, CHUNK, 2 * CHUNK + 5])
def test_the_squared_norm_of_a_combination(length: int, dtype: Any) -> None:
    x, total = draw(length, dtype=dtype), draw(length, dtype=dtype, seed=1)
    kernel = Reference(dtype).prepare(SquaredNorm(("x", "total"), np.dtype(dtype)))
    assert (kernel.reads, kernel.writes) == (("x", "total", "coefficients"), ("square",))
    square = np.full(1, np.nan)
    run(kernel, x=x, total=total, coefficients=np.array([0.5, 0.25]), square=square)
    combined = (dtype(0.5) * x + dtype(0.25) * total).astype(np.float64)
    np.testing.assert_allclose(square, [np.square(combined).sum()], rtol=1e-14)


def test_squares_are_added_up_in_double_precision() -> None:
    """In single precision 2^24 + 1 is 2^24, and (10^30)² is infinite."""
    square, one = np.zeros(1), np.ones(1)
    kernel = Reference().prepare(SquaredNorm(("x",), np.dtype(np.float32)))
    run(kernel, x=np.array([4096, 1], np.float32), coefficients=one, square=square)
    assert square == 2**24 + 1
    run(kernel, x=np.array([1e30], np.float32), coefficients=one, square=square)
    assert square == pytest.approx(1e60)


@pytest.mark.parametrize(
    ("squares", "factor"),
    [([9.0, 16.0], 0.5), ([6.25], 1.0), ([6.0], 1.0), ([0.0, 0.0], 1.0), ([np.inf], 0.0), ([1.0, np.nan], np.nan)],
)
def test_coefficients_are_clipped_by_the_norm(squares: list[float], factor: float) -> None:
    """The limit is 2.5: a norm of √(9 + 16) = 5 halves them; what is not a number is not hidden."""
    kernel = Reference().prepare(ClipCoefficients(2.5, [True, False, True]))
    clipped = np.full(3, np.nan)
    run(kernel, squares=np.array(squares), coefficients=np.array([1.0, 2.0, 4.0]), clipped_coefficients=clipped)
    np.testing.assert_array_equal(clipped, [factor, 2.0, 4 * factor])
