"""The reference's adaptive step, against the formula on whole vectors."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.reference.vector import CHUNK
from crossbow.kernels.requests import CountStep
from crossbow.solver.adaptation import STEP, AdaptationForm
from crossbow.solver.update import Assignment
from tests.kernels.adaptive_steps import CORRECTION, FORMS, MOMENT, PULLED, coefficients_of, request, vectors_of
from tests.kernels.reference.running import DTYPES, Numbers, run


def expected(
    form: AdaptationForm, assignment: Assignment, vectors: dict[str, Numbers], numbers: Numbers
) -> dict[str, Numbers]:
    """The formula in the vectors' type, rounded after every operation."""
    after = {name: vector.copy() for name, vector in vectors.items()}
    kind = after["s"].dtype.type
    numbers, (a, b) = numbers.astype(kind), CORRECTION.astype(kind)
    terms = len(form.descent)
    decay, gain, epsilon, keep, part = numbers[terms : terms + 5]
    d = sum_of([after[term] for term in form.descent], numbers)
    after["s"] = s = decay * after["s"] + gain * (d * d)
    if form.velocity and not form.of_steps:
        after["v"] = d = keep * after["v"] + part * d
    step = a * d / (b * np.sqrt(s) + epsilon)
    if form.of_steps:
        after["v"] = step = keep * after["v"] + part * step
    result = sum_of([step if term == STEP else after[term] for term in assignment.terms], numbers[terms + 5 :])
    return {**after, assignment.target: result}


def sum_of(terms: list[Numbers], numbers: Numbers) -> Numbers:
    total = numbers[0] * terms[0]
    for number, term in zip(numbers[1:], terms[1:], strict=False):
        total = total + number * term
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, CHUNK, 2 * CHUNK + 5])
@pytest.mark.parametrize(("form", "assignment"), FORMS)
def test_to_the_bit(form: AdaptationForm, assignment: Assignment, length: int, dtype: Any) -> None:
    asked = request(form, assignment, dtype)
    vectors, numbers = vectors_of(asked, length), coefficients_of(asked)
    wanted = expected(form, assignment, vectors, numbers)
    run(Reference(dtype).prepare(asked), **vectors, coefficients=numbers, correction=CORRECTION)
    for name, vector in vectors.items():
        assert vector.dtype == dtype
        np.testing.assert_array_equal(vector, wanted[name], err_msg=name)


def test_an_adam_step_worked_by_hand() -> None:
    """g = 2, s = 4, v = 1, halves everywhere, a = 2, b = 4: s ← ½·4 + ½·4 = 4, v ← ½·1 + ½·2 = 1.5,
    step = 2·1.5 / (4·√4 + 2) = 0.3, w ← 3 − 10·0.3 = 0."""
    asked = request(AdaptationForm(("g",), "s", "v"), Assignment("w", ("w", STEP)), np.float64)
    vectors = {name: np.array([value]) for name, value in {"g": 2.0, "s": 4.0, "v": 1.0, "w": 3.0}.items()}
    numbers = np.array([1, 0.5, 0.5, 2, 0.5, 0.5, 1, -10])
    run(Reference("float64").prepare(asked), **vectors, coefficients=numbers, correction=np.array([2.0, 4.0]))
    assert {name: float(vector[0]) for name, vector in vectors.items()} == {"g": 2, "s": 4, "v": 1.5, "w": 0}


def test_numbers_are_read_at_every_call() -> None:
    asked = request(MOMENT, PULLED, np.float64)
    vectors, numbers, correction = vectors_of(asked, 5), coefficients_of(asked), CORRECTION.copy()
    (call,) = Reference("float64").prepare(asked).bind({**vectors, "coefficients": numbers, "correction": correction})
    call()
    before = vectors["w"].copy()
    numbers[...] = 0
    numbers[-3], numbers[4], correction[...] = 1.0, 1.0, 1.0  # w is kept, and epsilon is 1
    call()
    np.testing.assert_array_equal(vectors["w"], before)
    np.testing.assert_array_equal(vectors["s"], np.zeros(5))


def test_vectors_and_coefficients_that_do_not_fit() -> None:
    asked = request(MOMENT, PULLED, np.float64)
    vectors = {**vectors_of(asked, 5), "coefficients": coefficients_of(asked), "correction": CORRECTION}
    kernel = Reference("float64").prepare(asked)
    with pytest.raises(ValueError, match="expected vectors of one length"):
        kernel.bind({**vectors, "g": np.zeros(4)})
    with pytest.raises(
        ValueError, match=r"expected 10 float64 coefficients, one for each term\. Received: float64 of shape \(9,\)"
    ):
        kernel.bind({**vectors, "coefficients": np.zeros(9)})


def test_a_call_allocates_nothing_that_grows_with_the_vectors() -> None:
    asked = request(MOMENT, PULLED, np.float32)
    buffers = {**vectors_of(asked, 40 * CHUNK), "coefficients": coefficients_of(asked), "correction": CORRECTION}
    (call,) = Reference().prepare(asked).bind(buffers)
    call()
    tracemalloc.start()
    try:
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8192


def test_steps_are_counted() -> None:
    """With decays of ½ and ¾: after one step 1 / (1 − ½) and 1 / √(1 − ¾); after two 1 / ¾ and 1 / √(7/16)."""
    count, correction = np.zeros(1), np.zeros(2)
    (call,) = Reference().prepare(CountStep(0.5, 0.75)).bind({"step_count": count, "correction": correction})
    call()
    assert (count.tolist(), correction.tolist()) == ([1], [2, 2])
    call()
    assert count == 2
    np.testing.assert_allclose(correction, [4 / 3, 4 / np.sqrt(7)], rtol=1e-15)
