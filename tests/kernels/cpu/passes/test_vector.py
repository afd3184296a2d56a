"""Compiled linear combinations, norms and clipped coefficients against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.kernels.requests import ClipCoefficients, LinearCombination, SquaredNorm
from crossbow.solver.update import Assignment
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, SINGLE, Numbers, draw, execute

NAMES = ["a", "b", "c", "d"]
TERMS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=14).map(tuple)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.builds(Assignment, st.sampled_from(NAMES), TERMS), min_size=1, max_size=4),
    st.sampled_from([1, 15, 16, 17, 1000, 1024, 1025, 5000]),
    st.integers(0, 100),
    st.lists(st.sampled_from(NAMES), max_size=2),
)
def test_linear_combination_is_bit_identical(
    assignments: list[Assignment], length: int, seed: int, signs: list[str]
) -> None:
    assignments = [
        Assignment(a.target, (*a.terms[:2], *(f"sign{n}" for n in range(len(signs)) if (n + i) % 2 == 0), *a.terms[2:]))
        for i, a in enumerate(assignments)
    ]
    coefficients = np.random.default_rng(seed).standard_normal(sum(len(a.terms) for a in assignments))
    results = []
    for library in (COMPILED, SINGLE):
        buffers = {name: draw((length,), i) for i, name in enumerate(NAMES)}
        buffers["a"][::3] = 0
        kernel = library.prepare(
            LinearCombination(assignments, FLOAT32, [(f"sign{n}", of) for n, of in enumerate(signs)])
        )
        call = kernel.bind({**buffers, "coefficients": coefficients, "workspace": np.zeros(0, np.uint8)})
        for _ in range(2):
            for part in call:
                part()
        results.append(buffers)
    for name in NAMES:
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_linear_combination_reads_its_coefficients_at_every_call() -> None:
    kernel = COMPILED.prepare(LinearCombination([Assignment("w", ("w", "g"))], FLOAT32))
    buffers = {"w": np.ones(3, np.float32), "g": np.ones(3, np.float32), "coefficients": np.array([1.0, 1.0])}
    (call,) = kernel.bind(buffers)
    call()
    buffers["coefficients"][1] = -1
    call()
    np.testing.assert_array_equal(buffers["w"], np.ones(3))


@pytest.mark.parametrize("length", [0, 1, 16, 1000, 1024, 5000])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_squared_norm(length: int, count: int) -> None:
    terms = tuple(f"x{i}" for i in range(count))
    buffers: dict[str, Numbers] = {term: draw((length,), i) for i, term in enumerate(terms)}
    buffers["coefficients"] = np.linspace(0.3, 0.7, count)
    results = []
    for library in (COMPILED, SINGLE):
        kernel = library.prepare(SquaredNorm(terms, FLOAT32))
        assert (kernel.reads, kernel.writes) == ((*terms, "coefficients"), ("square",))
        square = np.full(1, np.nan)
        for _ in range(2):
            execute(kernel, {**buffers, "square": square}, native=library is COMPILED)
        results.append(float(square[0]))
    assert results[0] == pytest.approx(results[1], rel=1e-13)


def test_squares_are_added_up_in_double_precision() -> None:
    x, square = np.array([4096, 1], np.float32), np.zeros(1)
    execute(COMPILED.prepare(SquaredNorm(("x",), FLOAT32)), {"x": x, "coefficients": np.ones(1), "square": square})
    assert square == 2**24 + 1


@pytest.mark.parametrize("squares", [[9.0, 16.0], [6.25], [6.0], [0.0, 0.0], [np.inf], [1.0, np.nan]])
def test_clipped_coefficients(squares: list[float]) -> None:
    results = []
    for library in (COMPILED, SINGLE):
        kernel = library.prepare(ClipCoefficients(2.5, [True, False, True]))
        assert (kernel.reads, kernel.writes) == (("squares", "coefficients"), ("clipped_coefficients",))
        buffers = {"squares": np.array(squares), "coefficients": np.array([1.0, 2.0, 4.0])}
        clipped = np.full(3, np.nan)
        execute(kernel, {**buffers, "clipped_coefficients": clipped}, native=library is COMPILED)
        results.append(clipped)
    np.testing.assert_array_equal(*results)


def test_vectors_of_different_lengths_are_refused() -> None:
    kernel = COMPILED.prepare(LinearCombination([Assignment("w", ("w", "g"))], FLOAT32))
    buffers = {"w": np.ones(3, np.float32), "g": np.ones(2, np.float32), "coefficients": np.ones(2)}
    with pytest.raises(ValueError, match="one length"):
        kernel.bind(buffers)


@pytest.mark.parametrize(
    "coefficients", [np.ones(1), np.ones(3), np.ones(2, np.float32)], ids=["too few", "too many", "single precision"]
)
def test_coefficients_are_float64_one_for_each_term(coefficients: Numbers) -> None:
    buffers = {"w": np.ones(3, np.float32), "g": np.ones(3, np.float32), "coefficients": coefficients}
    for request in (LinearCombination((Assignment("w", ("w", "g")),), FLOAT32), SquaredNorm(("w", "g"), FLOAT32)):
        with pytest.raises(ValueError, match=r"expected 2 float64 coefficients, one for each term\. Received: float"):
            COMPILED.prepare(request).bind({**buffers, "square": np.zeros(1)})
