"""Compiled adaptive steps against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import CountStep
from crossbow.solver.adaptation import AdaptationForm
from crossbow.solver.update import Assignment
from tests.kernels.adaptive_steps import CORRECTION, FORMS, MOMENT, PULLED, coefficients_of, request, vectors_of
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, SINGLE, execute


@pytest.mark.parametrize("length", [1, 15, 17, 1024, 5003])
@pytest.mark.parametrize(("form", "assignment"), FORMS)
def test_an_adaptive_step_is_bit_identical(form: AdaptationForm, assignment: Assignment, length: int) -> None:
    asked, results = request(form, assignment, FLOAT32), []
    for library in (COMPILED, SINGLE):
        vectors = vectors_of(asked, length)
        buffers = {**vectors, "coefficients": coefficients_of(asked), "correction": CORRECTION}
        for _ in range(2):
            execute(library.prepare(asked), buffers, native=library is COMPILED)
        results.append(vectors)
    for name in results[0]:
        np.testing.assert_array_equal(results[0][name], results[1][name], err_msg=name)


def test_numbers_that_are_not_finite_are_not_hidden() -> None:
    asked = request(MOMENT, PULLED, FLOAT32)
    vectors = vectors_of(asked, 40)
    vectors["g"][[3, 35]] = np.nan, np.inf
    execute(COMPILED.prepare(asked), {**vectors, "coefficients": coefficients_of(asked), "correction": CORRECTION})
    assert np.flatnonzero(~np.isfinite(vectors["w"])).tolist() == [3, 35]


def test_vectors_and_coefficients_that_do_not_fit() -> None:
    asked = request(MOMENT, PULLED, FLOAT32)
    vectors = {**vectors_of(asked, 5), "coefficients": coefficients_of(asked), "correction": CORRECTION}
    with pytest.raises(ValueError, match="expected vectors of one length"):
        COMPILED.prepare(asked).bind({**vectors, "g": np.zeros(4, np.float32)})
    with pytest.raises(ValueError, match="expected 10 float64 coefficients"):
        COMPILED.prepare(asked).bind({**vectors, "coefficients": np.zeros(9)})


def test_steps_are_counted() -> None:
    results = []
    for library in (COMPILED, SINGLE):
        buffers = {"step_count": np.zeros(1), "correction": np.zeros(2)}
        for _ in range(3):
            execute(library.prepare(CountStep(0.9, 0.999)), buffers, native=library is COMPILED)
        assert buffers["step_count"] == 3
        results.append(buffers["correction"])
    np.testing.assert_allclose(*results, rtol=1e-15)
