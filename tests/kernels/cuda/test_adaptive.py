"""Adaptive steps on the CUDA library, emulated on the CPU, against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import CountStep
from crossbow.solver.adaptation import STEP, AdaptationForm
from crossbow.solver.update import Assignment
from tests.combinations import covering
from tests.kernels.adaptive_steps import CORRECTION, FORMS, MOMENT, PULLED, coefficients_of, request, vectors_of
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.reference.running import DTYPES, run


@pytest.fixture(autouse=True)
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        yield cuda


@pytest.mark.parametrize(("terms", "length", "dtype", "offset"), covering(FORMS, [1, 4, 1003], DTYPES, [0, 1]))
def test_to_the_bit(terms: tuple[AdaptationForm, Assignment], length: int, dtype: Any, offset: int) -> None:
    """Aligned vectors, and vectors that begin one element later."""
    asked = request(*terms, dtype)
    expected = vectors_of(asked, length)
    received = {name: np.concatenate([np.zeros(offset, dtype), vector])[offset:] for name, vector in expected.items()}
    numbers = {"coefficients": coefficients_of(asked), "correction": CORRECTION}
    for library, vectors in ((Reference(dtype), expected), (Cuda(dtype), received)):
        for _ in range(2):
            run(library.prepare(asked), **vectors, **numbers)
    for name, vector in expected.items():
        np.testing.assert_array_equal(received[name], vector, err_msg=name)


def test_one_call_that_reads_its_numbers_each_time(fake: FakeCuda) -> None:
    asked = request(MOMENT, PULLED, np.float32)
    vectors, numbers, correction = vectors_of(asked, 64), coefficients_of(asked), CORRECTION.copy()
    (call,) = Cuda().prepare(asked).bind({**vectors, "coefficients": numbers, "correction": correction})
    call()
    before = vectors["w"].copy()
    numbers[-3:] = 1, 0, 0
    call()
    np.testing.assert_array_equal(vectors["w"], before)
    assert [recorded.name for recorded in fake.calls] == ["adaptive_step"] * 2


def test_names_of_the_same_memory() -> None:
    """z is stepped in place: its descent reads it by another name."""
    form, results = AdaptationForm(("g", "old"), "s"), []
    asked = request(form, Assignment("new", ("old", STEP)), np.float64)
    for library in (Reference("float64"), Cuda("float64")):
        vectors = vectors_of(asked, 9)
        vectors["new"] = vectors["old"]
        run(library.prepare(asked), **vectors, coefficients=coefficients_of(asked), correction=CORRECTION)
        results.append(vectors["old"])
    np.testing.assert_array_equal(*results)


def test_coefficients_that_do_not_fit() -> None:
    asked = request(MOMENT, PULLED, np.float32)
    with pytest.raises(ValueError, match="expected 10 float64 coefficients"):
        Cuda().prepare(asked).bind({**vectors_of(asked, 5), "coefficients": np.zeros(9), "correction": CORRECTION})


def test_steps_are_counted() -> None:
    results = []
    for library in (Reference(), Cuda()):
        buffers = {"step_count": np.zeros(1), "correction": np.zeros(2)}
        for _ in range(3):
            run(library.prepare(CountStep(0.9, 0.999)), **buffers)
        assert buffers["step_count"] == 3
        results.append(buffers["correction"])
    np.testing.assert_allclose(*results, rtol=1e-15)
