"""Products of stacks of matrices on the GPU that is none: what the operator table does not cover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.matmul import MOST_CALLS
from crossbow.kernels.reference.library import Reference
from crossbow.kernels.requests import MatmulBackward, MatmulForward, MatrixProductGeometry
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.cuda.test_inner_product import FLOAT32, FLOAT64, close, draw, execute, memory

GEMMS = ("cublasGemmEx", "cublasGemmStridedBatchedEx")


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        yield cuda


def compare(
    a: Shape,
    b: Shape,
    transposed: tuple[bool, bool] = (False, False),
    dtype: np.dtype[Any] = FLOAT32,
    layouts: tuple[Layout, Layout, Layout] = (Layout.PLAIN,) * 3,
) -> None:
    """Forward and both gradients beside the reference. `layouts`: of a, b and y, if those are images."""
    geometry = MatrixProductGeometry((a, b), transposed)
    ta, tb, ty = (
        Tensor(shape, dtype, layout if len(shape) == 4 else Layout.PLAIN)
        for shape, layout in zip((a, b, geometry.y), layouts, strict=True)
    )
    numbers = {"input0": draw(a, dtype, 1), "input1": draw(b, dtype, 2), "output_gradient": draw(ty.shape, dtype, 3)}
    for number in (None, 0, 1):
        target, role = (ty, "output") if number is None else ((ta, tb)[number], "input_gradient")
        exact = {**{name: value.astype(np.float64) for name, value in numbers.items()}, role: np.zeros(target.shape)}
        buffers = {role: memory(target)}
        for name, tensor in (("input0", ta), ("input1", tb), ("output_gradient", ty)):
            buffers[name] = memory(tensor, numbers[name])
        for library, arrays in ((Reference(np.float64), exact), (Cuda(dtype), buffers)):
            if number is None:
                execute(library.prepare(MatmulForward(ta, tb, ty, geometry)), arrays)
            else:
                execute(library.prepare(MatmulBackward(ty, ta, tb, number, geometry)), arrays)
        close(buffers[role], exact[role], ty.elements * geometry.factor(0)[-1] // target.elements)


@st.composite
def stacks(draw: st.DrawFn) -> tuple[Shape, Shape, tuple[bool, bool]]:
    m, n, k = (draw(st.integers(1, 4)) for _ in range(3))
    stack = draw(st.lists(st.integers(1, 4), max_size=4))
    a_stack, b_stack = (tuple(size if draw(st.booleans()) else 1 for size in stack) for _ in range(2))
    a_turned, b_turned = draw(st.booleans()), draw(st.booleans())
    a, b = (k, m) if a_turned else (m, k), (n, k) if b_turned else (k, n)
    return (*a_stack, *a), (*b_stack, *b), (a_turned, b_turned)


@pytest.mark.slow
@settings(max_examples=75, deadline=None)
@given(stacks(), st.sampled_from([FLOAT32, FLOAT64]), st.tuples(*[st.sampled_from(Layout)] * 3))
def test_random_stacks(
    shapes: tuple[Shape, Shape, tuple[bool, bool]], dtype: np.dtype[Any], layouts: tuple[Layout, Layout, Layout]
) -> None:
    with fake_cuda():
        compare(*shapes, dtype, layouts)


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_repeated_crosswise(fake: FakeCuda, transposed: tuple[bool, bool]) -> None:
    """Neither factor's matrices lie at equal distances, on too many axes for calls of their own."""
    a, b = ((2, 3) if transposed[0] else (3, 2)), ((4, 2) if transposed[1] else (2, 4))
    compare((MOST_CALLS + 2, 1, 3, *a), (1, MOST_CALLS + 1, 1, *b), transposed)
    products = [recorded.name for recorded in fake.calls if recorded.name in GEMMS]
    assert products == ["cublasGemmStridedBatchedEx"] * 3
    assert "repeat" in [recorded.name for recorded in fake.calls]


def calls_of(fake: FakeCuda, a: Shape, b: Shape, transposed: tuple[bool, bool] = (False, False)) -> list[str]:
    compare(a, b, transposed)
    return [recorded.name for recorded in fake.calls]


def test_stack_of_pairs_is_one_call_each(fake: FakeCuda) -> None:
    assert calls_of(fake, (2, 3, 4, 5), (2, 3, 5, 6)) == ["cublasGemmStridedBatchedEx"] * 3


def test_stack_times_one_matrix_is_a_tall_product(fake: FakeCuda) -> None:
    assert calls_of(fake, (2, 3, 4, 5), (1, 1, 5, 6)) == ["cublasGemmEx"] * 3


def test_one_matrix_times_a_stack_is_summed_by_rows(fake: FakeCuda) -> None:
    names = calls_of(fake, (1, 1, 4, 5), (2, 3, 5, 6))
    assert Counter(names) == {"cublasGemmStridedBatchedEx": 3, "sum_rows": 1}


def test_few_products_have_calls_of_their_own(fake: FakeCuda) -> None:
    names = calls_of(fake, (9, 1, 4, 5), (1, 3, 5, 6))
    assert "repeat" not in names
    assert names.count("cublasGemmStridedBatchedEx") <= 9


def test_products_come_out_the_same(fake: FakeCuda) -> None:
    """Order and number of the calls do not depend on anything but shapes."""
    first = calls_of(fake, (7, 1, 4, 5), (1, 8, 5, 6))
    fake.calls.clear()
    assert calls_of(fake, (7, 1, 4, 5), (1, 8, 5, 6)) == first
